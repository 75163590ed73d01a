"""The blocks of the guides to the library and the client do what their comments say, on every store."""

from __future__ import annotations

import inspect
from types import CodeType
from typing import Any

import pytest
from blocks import ROOT, Block, blocks_of

from lockstep import connect, open_engine
from lockstep.storage.memory import MemoryStore
from support.serving import serving

LIBRARY = [block for block in blocks_of(ROOT / "docs/guides/library.md") if block.use != "sketch"]

CLIENT = [block for block in blocks_of(ROOT / "docs/guides/client.md") if block.use != "sketch"]

WORK_QUEUES = [block for block in blocks_of(ROOT / "docs/guides/work-queues.md") if block.use != "sketch"]


async def test_library_guide_on_memory(capsys: pytest.CaptureFixture[str]) -> None:
    async with open_engine("memory://") as engine:
        blocks = [block for block in LIBRARY if block.use != "postgres"]
        await execute(blocks, {"engine": engine}, capsys)


async def test_library_guide_on_postgres(database_dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    async with open_engine(database_dsn) as engine:
        await execute(LIBRARY, {"engine": engine, "dsn": database_dsn}, capsys)


async def test_client_guide_on_memory(capsys: pytest.CaptureFixture[str]) -> None:
    with connect("memory://") as client:
        await execute(CLIENT, {"client": client}, capsys)


async def test_client_guide_on_postgres(database_dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    with connect(database_dsn) as client:
        await execute(CLIENT, {"client": client}, capsys)


async def test_client_guide_over_http(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(MemoryStore()) as url, connect(url) as client:
        await execute(CLIENT, {"client": client}, capsys)


async def test_work_queues_guide_on_memory(capsys: pytest.CaptureFixture[str]) -> None:
    with connect("memory://") as client:
        await execute(WORK_QUEUES, {"client": client}, capsys)


async def test_work_queues_guide_on_postgres(database_dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    with connect(database_dsn) as client:
        await execute(WORK_QUEUES, {"client": client}, capsys)


async def test_work_queues_guide_over_http(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(MemoryStore()) as url, connect(url) as client:
        await execute(WORK_QUEUES, {"client": client}, capsys)


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
