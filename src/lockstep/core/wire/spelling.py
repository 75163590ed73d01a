"""The names of query parameters and body fields: their spellings, and the error for a name that does not exist.

Every name may be written in camelCase and in snake_case. Names that Queen's clients send and Lockstep has no use for
are accepted. Any other name is an error that suggests the nearest name: a server that ignores a misspelled option
answers 200 and does something else than the client asked for.

The types of the requests are the table of names. The types of the busy routes forbid unknown fields in msgspec, which
costs nothing. Only a body that msgspec refuses is parsed again with its names translated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import Raw
from msgspec import inspect as types

from lockstep.core.names import nearest_of
from lockstep.errors import UnknownName

V = TypeVar("V")

QUEEN_NAMES: dict[str, frozenset[str]] = {
    "PopQuery": frozenset({"conflation", "frames"}),
    "PushItem": frozenset({"producerSub"}),
}
"""By request type: the names that Queen's clients send and Lockstep does not use.

The public client `queen-mq` 2.6 sends `conflation` and `frames`, as observed by calling every method of its Queen,
builders, streams and admin (tests/e2e/test_queen_client.py uses the same client). The protocol names `producerSub` as a
field that a server must ignore: the token identifies the producer.
"""

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_COMPARED_BYTES_MAX = 65_536
"""Larger values are compared as text: decoded they may take much more memory."""
_UNKNOWN_FIELD = "Object contains unknown field"


def is_unknown_field(error: msgspec.ValidationError) -> bool:
    return str(error).startswith(_UNKNOWN_FIELD)


@cache
def _info(kind: Any) -> types.Type:
    return types.type_info(kind)


@cache
def spellings(kind: Any) -> Mapping[str, str]:
    """Every spelling of the names of a request, mapped to the name in its type."""
    info = _info(kind)
    assert isinstance(info, types.StructType)
    return _spellings_of([*[field.encode_name for field in info.fields], *([info.tag_field] if info.tag_field else [])])


def _spellings_of(names: Iterable[str]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for name in names:
        found |= {snake(name): name, camel(name): name}
        found[name] = name
    return found


def snake(name: str) -> str:
    return _HUMP.sub("_", name).lower()


def camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join([other.capitalize() for other in others])


def renamed(given: Iterable[tuple[str, V]], kind: Any, *, what: str, where: str = "") -> dict[str, V]:
    """The given values by the names in the type. Raises UnknownName, whose text says `what` kind of names they are."""
    known, ignored = spellings(kind), QUEEN_NAMES.get(kind.__name__, frozenset())
    found: dict[str, V] = {}
    for name, value in given:
        own = known.get(name)
        if own is None:
            if name in ignored:
                continue
            raise unknown(name, dict.fromkeys(known.values()), what=what, where=where)
        if own in found and not _same(found[own], value):
            raise UnknownName(f"{what} {own!r} is given twice, with different values{where}", name=own)
        found[own] = value
    return found


def _same(one: object, other: object) -> bool:
    if isinstance(one, Raw) and isinstance(other, Raw):
        if max(len(bytes(one)), len(bytes(other))) > _COMPARED_BYTES_MAX:
            return bytes(one) == bytes(other)
        return bool(msgspec.json.decode(one) == msgspec.json.decode(other))
    return one == other


def unknown(name: str, known: Iterable[str], *, what: str, where: str = "") -> UnknownName:
    """The error for a name that does not exist."""
    names, shown = list(known), name[:64]
    text = f"there is no {what} {shown!r}{where}"
    nearest = nearest_of(name, names)
    if nearest is not None:
        return UnknownName(f"{text}; did you mean {nearest!r}?", name=shown, nearest=nearest)
    return UnknownName(f"{text}; {'there are: ' + ', '.join(names) if names else 'there are none here'}", name=shown)


def choices(kind: Any, name: str) -> list[str]:
    """The values that a field of a request may have, if they are a few strings."""
    info = _info(kind)
    assert isinstance(info, types.StructType)
    [given] = [one.type for one in info.fields if one.encode_name == name]
    literals = [one for one in (given, *_parts(given)) if isinstance(one, types.LiteralType)]
    return sorted([str(value) for literal in literals for value in literal.values])


def belongs_elsewhere(error: UnknownName, kind: Any, place: str) -> UnknownName:
    """The same error, which also says whether another part of the request has the name."""
    name = error.details.get("name")
    if kind is None or name not in spellings(kind):
        return error
    text = error.message.partition(";")[0]
    return UnknownName(f"{text}; it belongs {place}", name=name)


# --- Bodies -------------------------------------------------------------------------------------------------


@cache
def is_strict(kind: Any) -> bool:
    """Whether msgspec itself refuses unknown fields anywhere in such a body."""
    return _is_strict(_info(kind), frozenset())


def _is_strict(info: types.Type, above: frozenset[type[Any]]) -> bool:
    if isinstance(info, types.StructType):
        if info.cls in above:
            return True
        inner = [field.type for field in info.fields]
        return info.forbid_unknown_fields and all([_is_strict(one, above | {info.cls}) for one in inner])
    return all([_is_strict(one, above) for one in _parts(info)])


def _parts(info: types.Type) -> list[types.Type]:
    """The types within a type that is not a struct."""
    if isinstance(info, types.Metadata):
        return [info.type]
    if isinstance(info, types.UnionType):
        return list(info.types)
    if isinstance(info, types.ListType | types.VarTupleType | types.SetType | types.FrozenSetType):
        return [info.item_type]
    if isinstance(info, types.TupleType):
        return list(info.item_types)
    return [info.value_type] if isinstance(info, types.DictType) else []


def respelled(body: bytes, kind: Any) -> bytes:
    """The body with its fields spelled as in the type. Values are copied unchanged. Raises UnknownName, or
    msgspec.DecodeError if the body is not JSON."""
    return bytes(_respelled(Raw(body), _info(kind), ""))


def _respelled(raw: Raw, info: types.Type, path: str) -> Raw:
    """A value that does not match its type is left unchanged: msgspec reports what is wrong with it."""
    if isinstance(info, types.Metadata):
        return _respelled(raw, info.type, path)
    begin = bytes(raw).lstrip()[:1]
    if begin == b"{":
        return _respelled_object(raw, info, path)
    if begin == b"[":
        return _respelled_array(raw, info, path)
    return raw


def _respelled_object(raw: Raw, info: types.Type, path: str) -> Raw:
    given = msgspec.json.decode(raw, type=dict[str, Raw])
    struct = _struct_of(info, given)
    if struct is None:
        values = [one.value_type for one in _options(info) if isinstance(one, types.DictType)]
        if not values:
            return raw
        return _encoded({name: _respelled(value, values[0], f"{path}.{name}") for name, value in given.items()})
    fields = {field.encode_name: field.type for field in struct.fields}
    where = f" in {path.lstrip('.')}" if path else ""
    found = renamed(given.items(), struct.cls, what="field", where=where)
    return _encoded(
        {
            name: _respelled(value, fields[name], f"{path}.{name}") if name in fields else value
            for name, value in found.items()
        }
    )


def _respelled_array(raw: Raw, info: types.Type, path: str) -> Raw:
    item = next((part for one in _options(info) if not isinstance(one, types.DictType) for part in _parts(one)), None)
    if item is None or not _has_struct(item):
        return raw
    values = msgspec.json.decode(raw, type=list[Raw])
    return _encoded([_respelled(value, item, f"{path}[{index}]") for index, value in enumerate(values)])


def _options(info: types.Type) -> list[types.Type]:
    """The types that a value may have."""
    return list(info.types) if isinstance(info, types.UnionType) else [info]


def _has_struct(info: types.Type) -> bool:
    return isinstance(info, types.StructType) or any([_has_struct(one) for one in _parts(info)])


def _struct_of(info: types.Type, given: Mapping[str, Raw]) -> types.StructType | None:
    structs = [one for one in _options(info) if isinstance(one, types.StructType)]
    if len(structs) <= 1:
        return structs[0] if structs else None
    tag = bytes(given.get(structs[0].tag_field or "", Raw(b"")))
    return next((one for one in structs if tag == msgspec.json.encode(one.tag)), None)


_encode = msgspec.json.Encoder().encode


def _encoded(content: dict[str, Raw] | list[Raw]) -> Raw:
    return Raw(_encode(content))
