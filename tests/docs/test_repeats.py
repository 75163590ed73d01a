"""Nothing stands twice: no name of a class, and no block of code."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from blocks import ROOT

BLOCK_LINES = 6
_SOURCE = ROOT / "src" / "lockstep"
_GENERATED = "_sync"
_RELEASED = "migrations"
_SQL_HEADER = re.compile(r"create (or replace )?(function|procedure)\b")
_CLOSERS = frozenset({"", ")", "]", "}", "):", "),", "],", "},", ");"})


class Line(NamedTuple):
    number: int
    text: str | None
    """None where a block must end: at a signature, an import or a docstring."""


def _files(*suffixes: str) -> Iterator[Path]:
    for path in sorted(_SOURCE.rglob("*")):
        if path.suffix in suffixes and not {_GENERATED, _RELEASED} & set(path.parts):
            yield path


def test_class_names_are_unique() -> None:
    places = defaultdict(list)
    for path in _files(".py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(_SOURCE)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_block_stands_twice() -> None:
    lines = {
        str(path.relative_to(_SOURCE)): _lines(path.suffix, path.read_text(encoding="utf-8"))
        for path in _files(".py", ".sql")
    }
    assert _repeated(lines) == []


@pytest.mark.parametrize("suffix", [".py", ".sql"])
def test_repeated_block_is_found(suffix: str) -> None:
    first = [f"x{n} = f({n})" for n in range(BLOCK_LINES)]
    second = [*first[:-1], "y = 0"]
    assert _repeated({"a": _lines(suffix, "\n".join(first)), "b": _lines(suffix, "\n\n".join(first))}) == ["a:1 ~ b:1"]
    assert _repeated({"a": _lines(suffix, "\n".join(first)), "b": _lines(suffix, "\n".join(second))}) == []


def _repeated(files: dict[str, list[Line]]) -> list[str]:
    """The first lines of blocks that stand twice."""
    blocks: dict[tuple[str | None, ...], list[str]] = defaultdict(list)
    for name, lines in files.items():
        last: tuple[str | None, ...] = ()
        for start in range(len(lines) - BLOCK_LINES + 1):
            block = tuple(line.text for line in lines[start : start + BLOCK_LINES])
            if None not in block and block != last:
                blocks[block].append(f"{name}:{lines[start].number}")
            last = block
    return [" ~ ".join(places) for places in blocks.values() if len(places) > 1]


def _lines(suffix: str, text: str) -> list[Line]:
    """Lines of code, without blank ones, comments and lone brackets."""
    comment, left_out = ("#", _declared_in_python(text)) if suffix == ".py" else ("--", _declared_in_sql(text))
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        bare = " ".join(line.split())
        if number in left_out:
            lines.append(Line(number, None))
        elif bare not in _CLOSERS and not bare.startswith(comment):
            lines.append(Line(number, bare))
    return lines


def _declared_in_python(text: str) -> set[int]:
    """The lines of imports, signatures, fields of classes, and docstrings."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= _span(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *[decorator.lineno for decorator in node.decorator_list]])
            found |= set(range(first, node.body[0].lineno))
        if isinstance(node, ast.ClassDef):
            found |= {line for part in node.body if isinstance(part, ast.AnnAssign) for line in _span(part)}
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found |= {line for part in node.body if _is_text(part) for line in _span(part)}
    return found


def _span(node: ast.stmt) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _declared_in_sql(text: str) -> set[int]:
    """The lines of the headers of functions."""
    found, within = set(), False
    for number, line in enumerate(text.splitlines(), 1):
        within = within or _SQL_HEADER.match(line.strip()) is not None
        if within:
            found.add(number)
            within = "$$" not in line
    return found
