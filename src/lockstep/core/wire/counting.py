"""Counts the values in a body before it is decoded.

A decoded value takes many times the memory of its text: 16 MiB of `{},` become 800 MB. A body that may have too many
values is therefore counted first. The number of commas is an upper limit, and counting a comma costs a nanosecond.
Payloads stay text, whatever they contain, so the commas within them are subtracted.
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
"""An object with a payload counts as this many values, because inspecting it takes longer than decoding a value."""


class _BodyTally:
    """The counts for the current body. Nothing else runs in the meantime."""

    left = 0
    """Number of objects that may still follow."""
    limit = 0
    free = 0
    """Commas within payloads."""


def check_items(body: bytes, kind: Any, limit: int) -> None:
    """Raises TooManyItems if the body, decoded as a type, would have more values than the limit, and msgspec's error if
    it is not JSON."""
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
    """A struct with only the payloads, and the nested structs that have payloads."""

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
    """A single struct for all of them: only the names of their fields matter."""
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
    """The fields with payloads, by every spelling of their names."""
    looks = {field.encode_name: _look(field.type) for field in struct.fields}
    for spelling, name in spellings(struct.cls).items():
        if looks.get(name) is not None:
            yield spelling, looks[name]
