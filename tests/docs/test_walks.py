"""The walks that ARCHITECTURE.md draws: every hop exists, and none of them is long."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from blocks import ROOT

HOPS_MAX = 9
_SOURCE = ROOT / "src" / "lockstep"
_WALK = re.compile(r"^\*\*(?P<name>[^*]+)\*\*|^```walk\n(?P<hops>.*?)^```$", re.MULTILINE | re.DOTALL)


def _walks() -> list[tuple[str, list[str]]]:
    """Each walk with its hops, by the heading above it."""
    name, walks = "", []
    for found in _WALK.finditer((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")):
        name = found["name"] or name
        if found["hops"]:
            walks.append((name, found["hops"].splitlines()))
    return walks


WALKS = _walks()


def test_architecture_draws_the_walks() -> None:
    assert {"Push", "Long poll", "Next", "Ack", "Shared lease", "Queued operation", "Spark micro-batch"} <= {
        name for name, _ in WALKS
    }


@pytest.mark.parametrize(("name", "hops"), WALKS, ids=[name for name, _ in WALKS])
def test_walk_is_as_drawn(name: str, hops: list[str]) -> None:
    assert [hop for hop in hops if not _exists(*hop.split(": "))] == [], name
    assert len(hops) - 1 <= HOPS_MAX


def _exists(file: str, function: str | None = None) -> bool:
    """Whether there is such a hop. Only a query is named without a function."""
    path = _SOURCE / file
    if not path.exists():
        return False
    if function is None:
        return path.parent.name == "queries"
    if path.suffix == ".sql":
        return re.search(rf"function lockstep\.{function}\(", path.read_text(encoding="utf-8")) is not None
    return function in _functions(path)


def _functions(path: Path) -> set[str]:
    """The functions of a module, and the methods of its classes, with those that a class inherits in this module."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
            found |= {f"{node.name}.{one.split('.')[1]}" for one in found if one.split(".")[0] in bases and "." in one}
        members = [(f"{node.name}.", one) for one in node.body] if isinstance(node, ast.ClassDef) else [("", node)]
        found |= {
            prefix + one.name for prefix, one in members if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
        }
    return found


def test_hop_that_is_gone_is_noticed() -> None:
    assert _exists("engine/batching.py", "Batching.push")
    assert not _exists("engine/batching.py", "Batching.lane")
    assert not _exists("engine/lane.py", "Lane.ask")
    assert not _exists("storage/postgres/sql/procedures/push.sql", "pull")
    assert not _exists("storage/postgres/sql/queries/pull.sql")
    assert not _exists("engine/batching.py")
