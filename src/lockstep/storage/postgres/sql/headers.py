"""Parses the headers of the procedures: parameters, defaults and results. No header is written twice."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_HEADER = re.compile(r"^create or replace function lockstep\.(\w+)\s*\(", re.MULTILINE)
_TYPE = re.compile(r"^create type lockstep\.(\w+) as \(", re.MULTILINE)
_ADDED = re.compile(r"^alter type lockstep\.(\w+) add attribute ([^;,]+)", re.MULTILINE)
_RESULT = re.compile(r"\s*(?:returns\s+(table\s*\(|(?:setof\s+)?[\w.]+(?: with time zone| precision)?(?:\[\])?))?")
_DEFAULT = re.compile(r"\s+default\s+")


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    """Without the underscore that it has in SQL."""
    spelled: str
    type: str
    optional: bool
    fields: tuple[Parameter, ...] = ()
    """Of a parameter of a row type: the arguments that replace it."""

    @property
    def given(self) -> tuple[Parameter, ...]:
        return self.fields or (self,)


@dataclass(frozen=True, slots=True)
class Header:
    name: str
    parameters: tuple[Parameter, ...]
    columns: tuple[str, ...]
    """The columns of its rows; empty if it returns one value, or rows of a table."""
    is_scalar: bool

    @property
    def given(self) -> tuple[Parameter, ...]:
        """The arguments of a caller: the parameters, and the fields of those that are rows."""
        return tuple(field for parameter in self.parameters for field in parameter.given)


def types(text: str) -> dict[str, tuple[Parameter, ...]]:
    """The columns of the row types that a text creates."""
    found = {match.group(1): _split(_parenthesised(text, match.end())[0]) for match in _TYPE.finditer(text)}
    for name, added in _ADDED.findall(text):
        found[name].append(added)
    return {name: tuple(map(_parameter, parts)) for name, parts in found.items()}


def headers(text: str, types: Mapping[str, tuple[Parameter, ...]]) -> Iterator[Header]:
    """The headers of all functions in a text, which may take and return rows of these types."""
    for match in _HEADER.finditer(text):
        inside, rest = _parenthesised(text, match.end())
        given = [part for part in _split(inside) if not part.startswith("out ")]
        out = [part[4:] for part in _split(inside) if part.startswith("out ")]
        returned = _RESULT.match(text, rest)
        result = (returned.group(1) if returned else None) or ""
        if returned and result.startswith("table"):
            out = _split(_parenthesised(text, returned.end())[0])
        elif result.startswith("setof "):
            out = [column.name for column in types.get(result.rpartition(".")[2], ())]
        columns = tuple(part.split()[0].removeprefix("_") for part in out)
        is_scalar = len(columns) < 2 and not result.startswith(("setof", "table"))
        parameters = tuple(_parameter(part, types) for part in given)
        yield Header(match.group(1), parameters, columns, is_scalar)


def _parameter(text: str, types: Mapping[str, tuple[Parameter, ...]] | None = None) -> Parameter:
    declared, *default = _DEFAULT.split(text, maxsplit=1)
    spelled, kind = declared.split(maxsplit=1)
    fields = (types or {}).get(kind.removeprefix("lockstep."), ())
    return Parameter(spelled.removeprefix("_"), spelled, kind, bool(default), fields)


def _parenthesised(text: str, begin: int) -> tuple[str, int]:
    """The text between the parenthesis opened before `begin` and its closing one, and the position after that."""
    depth, end = 1, begin
    while depth:
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        end += 1
    return text[begin : end - 1], end


def _split(text: str) -> list[str]:
    """The parts between commas that no parentheses enclose."""
    parts, depth, begin = [], 0, 0
    for at, character in enumerate(text + ","):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append(" ".join(text[begin:at].split()))
            begin = at + 1
    return [part for part in parts if part]
