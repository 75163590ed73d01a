"""The blocks of the guides to the library and the client do what their comments say, on every store."""

from __future__ import annotations

import inspect
from types import CodeType
from typing import Any

import pytest
from blocks import ROOT, Block, blocks_of, name_of

from lockstep import connect, open_engine
from lockstep.storage.memory import MemoryStore
from support.serving import serving

LIBRARY = [block for block in blocks_of(ROOT / "docs/guides/library.md") if block.use != "sketch"]

GUIDES = [
    f"docs/guides/{name}.md" for name in ("client", "work-queues", "workers", "schedules", "back-pressure", "replay")
]
"""They need no more than a client, whatever it stands on."""

MOVING = [path for path in (ROOT / "docs/moving").glob("*.md") if path.name != "README.md"]

ON_POSTGRES = [
    "docs/guides/outbox.md",
    *sorted(f"docs/moving/{path.name}" for path in MOVING),
]
"""They may also use the address of a database, `dsn`."""


def executed(page: str) -> list[Block]:
    return [block for block in blocks_of(ROOT / page) if block.use not in ("sketch", "run")]


async def test_library_guide_on_memory(capsys: pytest.CaptureFixture[str]) -> None:
    async with open_engine("memory://") as engine:
        blocks = [block for block in LIBRARY if block.use != "postgres"]
        await execute(blocks, {"engine": engine}, capsys)


async def test_library_guide_on_postgres(database_dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    async with open_engine(database_dsn) as engine:
        await execute(LIBRARY, {"engine": engine, "dsn": database_dsn}, capsys)


@pytest.mark.parametrize("page", GUIDES)
async def test_guide_on_memory(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    with connect("memory://") as client:
        await execute(executed(page), {"client": client}, capsys)


@pytest.mark.parametrize("page", [*GUIDES, *ON_POSTGRES])
async def test_guide_on_postgres(page: str, database_dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    with connect(database_dsn) as client:
        await execute(executed(page), {"client": client, "dsn": database_dsn}, capsys)


@pytest.mark.parametrize("page", GUIDES)
async def test_guide_over_http(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(MemoryStore()) as url, connect(url) as client:
        await execute(executed(page), {"client": client}, capsys)


def test_every_page_with_python_is_executed() -> None:
    """Pages of Spark and those that show how to open what the others use have sketches only, or tests of their own."""
    run = {*GUIDES, *ON_POSTGRES, "docs/guides/library.md"}
    pages = [*(ROOT / "docs/guides").glob("*.md"), *MOVING]
    others = {name_of(path) for path in pages if executed(name_of(path))} - run
    # One needs Spark; test_tracing_guide.py runs the other.
    assert others == {"docs/guides/testing-steps.md", "docs/guides/observability.md"}


async def execute(blocks: list[Block], names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Run the blocks one after the other, each with the names that those before it made."""
    assert blocks
    for block in blocks:
        await run(block.compile(), names)
        assert capsys.readouterr().out.splitlines() == block.prints(), f"{block} prints something else"


async def run(code: CodeType, names: dict[str, Any]) -> None:
    pending = eval(code, names)
    if inspect.isawaitable(pending):
        await pending
