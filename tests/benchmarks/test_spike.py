"""The load generator: whatever a server does, every request has an answer, and the generator lives to tell."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from benchmarks.scenarios import load
from benchmarks.spike import Spike

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def served(serve: Serve) -> AsyncIterator[str]:
    serving: set[asyncio.Task[None] | None] = set()

    async def noted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        await serve(reader, writer)

    server = await asyncio.start_server(noted, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    await asyncio.gather(*[task for task in serving if task is not None])


def spike(url: str, *, rate: float = 200, timeout_seconds: float = 30) -> Spike:
    return Spike(url, rate, 0.1, messages=1, partitions=1, connections=3, timeout_seconds=timeout_seconds)


async def read_request(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))


async def answer_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while not reader.at_eof():
        try:
            await read_request(reader)
        except asyncio.IncompleteReadError:
            break
        writer.write(b"HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\n[]")
    writer.close()


async def lose_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.transport.abort()


async def answer_none(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


@pytest.mark.parametrize("rate", [0, 200])
async def test_answers_are_counted(rate: float) -> None:
    async with served(answer_all) as url:
        told = await spike(url, rate=rate).run()
    answers: Any = told["answers"]
    assert answers.keys() == {"201"}
    assert not rate or answers["201"] == 20
    assert told["p99_ms"] is not None


@pytest.mark.parametrize(("serve", "answer"), [(lose_all, "lost"), (answer_none, "timeout")])
async def test_what_is_not_answered_is_counted_as_that(serve: Serve, answer: str) -> None:
    async with served(serve) as url:
        told = await spike(url, timeout_seconds=30 if answer == "lost" else 0.05).run()
    assert told["answers"].keys() == {answer}  # type: ignore[attr-defined]
    assert told["p99_ms"] is None


async def test_connections_that_are_refused_are_counted() -> None:
    async with served(answer_all) as url:
        pass
    told = await spike(url).run()
    assert told["answers"] == {"refused": 20}, "none is left out"


async def test_generator_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match=r"the load generator failed \(1\): [\s\S]*no-number"):
        await load._generate("http://127.0.0.1:1", "no-number", 1, 1)  # type: ignore[arg-type]
