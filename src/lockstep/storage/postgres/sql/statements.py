"""Calls of procedures, derived from their headers: the text of the statement, its arguments by name, its rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from operator import itemgetter
from typing import Any, Generic, TypeVar, cast, get_type_hints

import msgspec

from lockstep.storage.postgres.calls import Call
from lockstep.storage.postgres.sql.headers import Header, Parameter

R = TypeVar("R")

_PLACEHOLDER = re.compile(r"\$(\d+)")


class Procedure(Generic[R]):
    """One procedure. Calling it with its arguments, by name, gives the `Call`; nothing is sent yet."""

    def __init__(self, header: Header, *, row: type[R] | None, label: str, as_text: Sequence[str]) -> None:
        self.header = header
        self.label = label
        self.record = _record(header, row)
        self._as_text = frozenset(as_text)
        self._names = tuple(given.name for given in header.given)
        self.required = frozenset(given.name for given in header.given if not given.optional)
        unknown = self._as_text.difference(self._names)
        if unknown:
            raise TypeError(f"{header.name} has no parameter {', '.join(sorted(unknown))}")
        self._spelled, self._spelled_within = cache(self._as_given), cache(self._as_given_within)
        self.sql = self._derived(self._names)

    def __call__(self, **given: Any) -> Call[R]:
        names, statement = self._spelled(tuple(given))
        return Call(self.label, statement, [*map(given.__getitem__, names)], self.record)

    def check(self, given: Any) -> None:
        """Raises TypeError unless these are names of parameters, including all required ones."""
        wrong = self.required.difference(given) | set(given).difference(self._names)
        if wrong:
            raise TypeError(f"{self.header.name}() has no, or lacks, {', '.join(sorted(wrong))}")

    def within(self, lock_seconds: float | None, **given: Any) -> Call[R]:
        """The call in a statement that waits at most this long for each lock, which saves the round trips of a
        transaction."""
        if lock_seconds is None:
            return self(**given)
        names, statement = self._spelled_within(tuple(given))
        milliseconds = max(round(lock_seconds * 1000), 1)
        return Call(self.label, statement, [*map(given.__getitem__, names), str(milliseconds)], self.record)

    def _as_given(self, given: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
        """The arguments in the order of the statement, and the statement; computed once for each way to call it."""
        self.check(given)
        names = tuple(name for name in self._names if name in given)
        return names, self._derived(names)

    def _as_given_within(self, given: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
        names, _ = self._as_given(given)
        return names, _with_lock_timeout(self, names)

    def _derived(self, names: tuple[str, ...]) -> str:
        call = f"lockstep.{self.header.name}({', '.join(self.arguments(names))})"
        return f"select {call}" if self.header.is_scalar else f"select * from {call}"

    def arguments(self, names: tuple[str, ...]) -> list[str]:
        """An expression for each argument, with the parameter's type; named after one that is left out."""
        places = {name: place for place, name in enumerate(names, 1)}
        chosen = [parameter for parameter in self.header.parameters if parameter.given[0].name in places]
        return [
            ("" if whole is parameter else f"{parameter.spelled} => ") + self._argument(parameter, places)
            for whole, parameter in zip(self.header.parameters, chosen, strict=False)
        ]

    def _argument(self, parameter: Parameter, places: Mapping[str, int]) -> str:
        placeholders = [self._placeholder(places[given.name], given) for given in parameter.given]
        return f"row({', '.join(placeholders)})::{parameter.type}" if parameter.fields else placeholders[0]

    def _placeholder(self, place: int, parameter: Parameter) -> str:
        by = "::text" if parameter.name in self._as_text else ""
        return f"${place}{by}::{parameter.type}"


def union(first: Call[R], second: Call[R]) -> Call[R]:
    """The rows of both calls, in one statement."""
    both = _union(first.sql, second.sql, len(first.args))
    return Call(first.name, both, [*first.args, *second.args], first.record)


@cache
def _union(first: str, second: str, places: int) -> str:
    moved = _PLACEHOLDER.sub(lambda match: f"${int(match.group(1)) + places}", second)
    return f"{first} union all {moved}"


def _with_lock_timeout(procedure: Procedure[Any], names: tuple[str, ...]) -> str:
    """The procedure runs after the setting, because its first argument depends on it."""
    first, *others = procedure.arguments(names)
    arguments = ", ".join([f"case when s.lock_ms <> '' then {first} end", *others])
    setting = f"(select set_config('lock_timeout', ${len(names) + 1}, true) as lock_ms) s"
    return f"select a.* from {setting} cross join lateral lockstep.{procedure.header.name}({arguments}) a"


def _record(header: Header, row: type[R] | None) -> Callable[[Any], R] | None:
    """What makes a record of a row; None if rows stay what the driver gives. Raises TypeError if the fields differ."""
    if header.is_scalar:
        return itemgetter(0)
    if row is None:
        return None
    if issubclass(row, msgspec.Struct):
        if not set(header.columns) <= set(row.__struct_fields__):
            raise TypeError(f"{row.__name__} lacks columns of {header.name}: {', '.join(header.columns)}")
        struct = cast("Callable[..., R]", row)
        return lambda values: struct(**dict(zip(header.columns, values, strict=True)))
    fields = cast("Any", row)._fields
    if fields and not set(fields) & set(header.columns):
        return _record_of_parts(header, row)
    if fields != header.columns:
        raise TypeError(f"{row.__name__} has other fields than {header.name}: {', '.join(header.columns)}")
    # As _make, but in C: its check of the length has been done above.
    return cast("Callable[[Any], R]", partial(tuple.__new__, row))


def _record_of_parts(header: Header, row: type[R]) -> Callable[[Any], R]:
    """What makes a record of records: each part takes the columns that have the names of its fields."""
    places = {name: place for place, name in enumerate(header.columns)}
    parts: list[tuple[Callable[..., Any], list[int]]] = []
    for part in get_type_hints(row).values():
        fields = part.__struct_fields__ if issubclass(part, msgspec.Struct) else part._fields
        if not set(fields) <= set(places):
            raise TypeError(f"{part.__name__} has other fields than {header.name}: {', '.join(header.columns)}")
        parts.append((part, [places.pop(name) for name in fields]))
    if places:
        raise TypeError(f"{row.__name__} lacks columns of {header.name}: {', '.join(places)}")
    make = cast("Callable[..., R]", row)
    return lambda values: make(*[part(*[values[place] for place in taken]) for part, taken in parts])
