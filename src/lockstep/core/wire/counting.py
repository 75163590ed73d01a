"""How many values a body has, counted before it is decoded.

A decoded value takes many times the memory of its text: 16 MiB of `{},` become 800 MB. So a body that may have too many
values is counted first. There are at most as many as there are commas, and a comma costs a nanosecond. Payloads stay
the text that they are, whatever is in them; so what is between their commas is taken off again.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, ClassVar

import msgspec
from msgspec import Raw
from msgspec import inspect as types

from lockstep.core.wire.spelling import spellings
from lockstep.errors import TooManyItems

_VALUE_BYTES_MIN = 2
"""A value and its comma."""
_OBJECT_VALUES = 4
"""An object that has a payload counts for so many: to look into it takes longer than to decode a value."""


class _BodyTally:
    """What was counted of the body that is being looked at. Nothing else runs meanwhile."""

    left = 0
    """Objects that may still come."""
    limit = 0
    free = 0
    """Commas inside of payloads."""


def check_items(body: bytes, kind: Any, limit: int) -> None:
    """Raises TooManyItems if the body, decoded as a type, would have more values than the limit; and what msgspec
    raises for what is no JSON."""
    if len(body) <= _VALUE_BYTES_MIN * limit:
        return
    commas = body.count(b",")
    if commas <= limit:
        return
    look = _look_of(kind)
    if look is not None:
        _BodyTally.left = _BodyTally.limit = limit
        _BodyTally.free = 0
        look.decode(body)
        commas -= _BodyTally.free
    if commas > limit:
        raise _too_many(limit)


def _too_many(limit: int) -> TooManyItems:
    return TooManyItems(f"the body has more than {limit} values beside its payloads (body_items_max)")


class _Look(msgspec.Struct):
    """A struct of which only the payloads are looked at, and the structs that have some."""

    payload_names: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        _BodyTally.left -= _OBJECT_VALUES
        if _BodyTally.left < 0:
            raise _too_many(_BodyTally.limit)
        for name in self.payload_names:
            _BodyTally.free += bytes(getattr(self, name)).count(b",")


@cache
def _look_of(kind: Any) -> msgspec.json.Decoder[Any] | None:
    """None for a type without payloads."""
    look = _look(types.type_info(kind))
    return None if look is None else msgspec.json.Decoder(look)


def _look(info: types.Type) -> Any:
    if isinstance(info, types.Metadata):
        return _look(info.type)
    if isinstance(info, types.RawType):
        return Raw
    if isinstance(info, types.ListType | types.VarTupleType):
        item = _look(info.item_type)
        return None if item is None else list[item]  # type: ignore[valid-type]
    structs = [one for one in _options(info) if isinstance(one, types.StructType)]
    if structs:
        return _look_at_structs(structs)
    return next((found for one in _options(info) if one is not info and (found := _look(one)) is not None), None)


def _options(info: types.Type) -> tuple[types.Type, ...]:
    return info.types if isinstance(info, types.UnionType) else (info,)


def _look_at_structs(structs: list[types.StructType]) -> Any:
    """One for all of them: nothing but their fields is told apart."""
    fields = dict([field for one in structs for field in _fields(one)])
    if not fields:
        return None
    named = [
        (f"field_{i}", Raw, Raw()) if look is Raw else (f"field_{i}", look | None, None)
        for i, look in enumerate(fields.values())
    ]
    rename = {f"field_{i}": name for i, name in enumerate(fields)}
    payloads = {"payload_names": tuple([name for name, look, _ in named if look is Raw])}
    name = f"LookAt{structs[0].cls.__name__}"
    return msgspec.defstruct(name, named, bases=(_Look,), namespace=payloads, rename=rename)


def _fields(struct: types.StructType) -> Iterator[tuple[str, Any]]:
    """The fields that have payloads, by every spelling of their names."""
    looks = {field.encode_name: _look(field.type) for field in struct.fields}
    for spelling, name in spellings(struct.cls).items():
        if looks.get(name) is not None:
            yield spelling, looks[name]
