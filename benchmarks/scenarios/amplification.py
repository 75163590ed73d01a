"""What bodies that become much of little text do to other clients: how long one of them waits for such a body.

A body of 20 MiB is refused by its head; 16 MiB, the largest that is read, are counted before they are decoded. The
server's CPU per body is at least as long as its longest turn, and does not depend on what else the machine does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from benchmarks.harness import Bar, Outcome, Table, progress
from benchmarks.http_client import Connection, request
from benchmarks.processes import children, cpu_seconds
from benchmarks.scenarios.http import server_process
from benchmarks.scenarios.setting import Setting

_MIB = 1024 * 1024
BODIES_EACH = 20
STALL_MS_MAX = 100
_PING = request("GET", "/health")
_PING_PAUSE_SECONDS = 0.002


def _filled(head: bytes, piece: bytes, tail: bytes, size: int = 16 * _MIB) -> bytes:
    count = (size - len(head) - len(tail)) // (len(piece) + 1)
    return head + b",".join([piece] * count) + tail


_ITEM = b'{"queue":"bench.amplified","payload":1}'
SHAPES: dict[str, Callable[[], tuple[str, bytes]]] = {
    "20 MiB of {}": lambda: ("/api/v1/push", _filled(b'{"items":[', b"{}", b"]}", 20 * _MIB)),
    "{}": lambda: ("/api/v1/push", _filled(b'{"items":[', b"{}", b"]}")),
    "[]": lambda: ("/api/v1/push", _filled(b'{"items":[', b"[]", b"]}")),
    "items": lambda: ("/api/v1/push", _filled(b'{"items":[', _ITEM, b"]}")),
    "200,000 values": lambda: ("/api/v1/push", b'{"items":[%b]}' % b",".join([_ITEM] * 49_000)),
    "headers": lambda: ("/api/v1/push", _filled(b'{"items":[{"queue":"q","headers":{', b'"a":"b"', b"}}]}")),
    "lists in a list": lambda: ("/api/v1/push", b'{"items":' + b"[" * (16 * _MIB - 20)),
    "a payload of {}": lambda: ("/api/v1/push", _filled(b'{"items":[{"queue":"q","payload":[', b"{}", b"]}]}")),
    "a number": lambda: ("/api/v1/dlq/redrive", b'{"ids":[' + b"9" * (16 * _MIB - 20) + b"]}"),
    "acks": lambda: ("/api/v1/ack/batch", _filled(b'{"acknowledgments":[', b"{}", b"]}")),
    "operations": lambda: ("/api/v1/transaction", _filled(b'{"operations":[', b"{}", b"]}")),
    "leases": lambda: ("/api/v1/transaction", _filled(b'{"operations":[],"requiredLeases":[', b'""', b"]}")),
}


async def amplification_scenario(setting: Setting) -> Outcome:  # noqa: ARG001
    """On the memory store: what the database does with a body is none of the loop's time."""
    rows: list[dict[str, Any]] = []
    async with server_process("memory://") as (url, pid):
        alone = await _longest_wait_ms(url, asyncio.sleep(2.0))
        for name, made in SHAPES.items():
            path, body = made()
            before = cpu_seconds(children(pid))
            waited = await _longest_wait_ms(url, _send(url, request("POST", path, body)))
            spent = 1000 * (cpu_seconds(children(pid)) - before) / BODIES_EACH
            rows.append({"name": name, "cpu_ms_per_body": round(spent, 1), "others_wait_ms_max": round(waited, 1)})
            progress(f"  {name}: {spent:.1f} ms of CPU, others wait for {waited:.1f} ms at most ({alone:.1f} ms alone)")
    worst = max([row["cpu_ms_per_body"] for row in rows])
    return Outcome(
        [Table(f"Bodies of 16 MiB; without them others wait for {alone:.1f} ms at most", rows)],
        [Bar.at_most("a body of 16 MiB: CPU of the server, ms", worst, STALL_MS_MAX)],
    )


async def _send(url: str, prepared: bytes) -> None:
    for _ in range(BODIES_EACH):
        connection = await Connection.to(url)
        try:
            await connection.ask(prepared)
        except ConnectionError:
            pass  # refused by its head, and closed
        finally:
            connection.close()


async def _longest_wait_ms(url: str, meanwhile: Any) -> float:
    """How long the slowest answer to another client takes while something goes on."""
    waits: list[float] = []
    task = asyncio.ensure_future(meanwhile)
    connection = await Connection.to(url)
    while not task.done():
        began = time.perf_counter()
        await connection.ask(_PING)
        waits.append(time.perf_counter() - began)
        await asyncio.sleep(_PING_PAUSE_SECONDS)
    connection.close()
    await task
    return 1000 * max(waits)
