"""Packed bodies over HTTP beside JSON and the plain INSERT: what our own clients send and receive."""

from __future__ import annotations

from benchmarks.harness import CALLERS, Bar, Outcome, Table
from benchmarks.http_client import request
from benchmarks.scenarios.http import POP_QUEUE, Consumers, http_push, served
from benchmarks.scenarios.setting import QUEUE, Setting
from lockstep import Batch
from lockstep.core.wire import delivery as wire

BATCHES = (10, 100, 1000)
CONNECTIONS = 10
BARS = {100: 2.5, 1000: 5.0}
"""By batch: how many times the plain INSERT a packed push is to be."""


def _push_request(payloads: list[bytes], partition: str) -> bytes:
    body = wire.write_push([Batch.of(QUEUE, payloads, partition=partition)])
    return request("POST", "/api/v1/push", body, media=wire.PACKED)


async def packed_scenario(setting: Setting) -> Outcome:
    tables, bars = [], []
    async with served(setting) as target:
        await target.engine.configure(POP_QUEUE)
        for size in BATCHES:
            base = target.plain.side(setting.messages, size, CALLERS)
            sides = [
                http_push(target, setting, size, CONNECTIONS, name="packed", encode=_push_request),
                http_push(target, setting, size, CONNECTIONS),
                Consumers(target, setting, size, CONNECTIONS, wire.PACKED, "packed").side(),
                Consumers(target, setting, size, CONNECTIONS).side(),
            ]
            measured = await setting.compare(base, sides)
            tables.append(Table(f"Packed and JSON, batch {size}", [each.row() for each in measured]))
            if size in BARS:
                name = f"{measured[1].name}: times the plain INSERT"
                bars.append(Bar.at_least(name, measured[1].ratio, BARS[size]))
    return Outcome(tables, bars)
