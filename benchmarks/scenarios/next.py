"""Leases that are continued, and the same with separate pops and acks, against the plain INSERT of batches of 100."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec

from benchmarks.harness import CALLERS, Bar, Outcome, Side
from benchmarks.http_client import request
from benchmarks.scenarios import pop as pops
from benchmarks.scenarios.http import POP_QUEUE, Consumers, Target, served
from benchmarks.scenarios.setting import Plain, Setting, table
from lockstep import Batch, Engine, NextRequest, Popped, PopRequest
from lockstep.core.wire import delivery as wire

_MESSAGES_PER_SECOND = {100: 900_000, 10: 400_000}
"""By messages of each partition in a batch: how much backlog a slice gets. It ends early where that is used up."""
_PUSHED_AT_ONCE = 1000
"""Messages in a push of the backlog, and so in a segment."""


@dataclass(slots=True)
class Share:
    """The partitions of one caller, which nobody else consumes, and the lease that it holds on them."""

    queue: str
    partitions: int
    each: int
    """Messages of each partition in a batch."""
    popped: Popped | None = None

    @property
    def request(self) -> PopRequest:
        return PopRequest(queue=self.queue, partitions=self.partitions, batch=self.partitions * self.each)


@dataclass(slots=True)
class Backlog:
    """A queue for each caller. Before a slice every partition has one batch, which is leased, and then many more: so a
    batch has as many partitions, and each of them as much, as it should."""

    engine: Engine
    setting: Setting
    name: str
    partitions: int
    each: int
    callers: int = CALLERS
    shares: list[Share] = field(default_factory=list)
    slices: int = 0

    async def prepare(self, seconds: float) -> None:
        for share in self.shares:
            await self.engine.delete_queue(share.queue)
        self.slices += 1
        self.shares = [
            Share(f"bench.{self.name}.{self.slices}.{caller}", self.partitions, self.each)
            for caller in range(self.callers)
        ]
        deep = int(seconds * _MESSAGES_PER_SECOND[self.each]) // (self.callers * self.partitions) + 10 * self.each
        for share in self.shares:
            await self._push(share, share.each)
            [share.popped] = await self.engine.pop([share.request])
            at_once = _PUSHED_AT_ONCE // self.partitions
            for _ in range(0, deep, at_once):
                await self._push(share, at_once)

    async def _push(self, share: Share, count: int) -> None:
        batch = self.setting.messages.batch(count)
        await self.engine.push([Batch.of(share.queue, batch, partition=f"p{n}") for n in range(share.partitions)])

    def side(self, name: str, once: Callable[[Share], Awaitable[Popped]]) -> Side:
        async def work(caller: int) -> int:
            share = self.shares[caller]
            if share.popped is None or not share.popped.runs:
                return 0
            payloads = share.popped.payloads()
            share.popped = await once(share)
            return len(payloads)

        return Side(name, work, self.prepare, callers=self.callers)


def going_on(engine: Engine) -> Callable[[Share], Awaitable[Popped]]:
    async def once(share: Share) -> Popped:
        assert share.popped is not None
        [continued] = await engine.next([NextRequest(lease_id=share.popped.lease_id or "", pop=share.request)])
        if not continued.acked.messages:
            raise RuntimeError(f"the lease was not completed: {continued.acked}")
        return continued.popped

    return once


async def next_scenario(setting: Setting) -> Outcome:
    hundred, ten = pops.Backlog("bench.hundred", 100), pops.Backlog("bench.ten", 10)
    async with (
        setting.server.database() as dsn,
        Plain.opened(dsn) as plain,
        pops.prepared(setting, dsn, [hundred, ten]) as (engine, _),
    ):
        sides = [
            _backlog(engine, setting, 10, 10),
            pops.Consumers(engine, ten, 10, 100).side("pop + ack, 10 partitions x 10"),
            _backlog(engine, setting, 1, 100),
            pops.Consumers(engine, hundred, 1, 100).side("pop + ack, 1 partition x 100"),
            _backlog(engine, setting, 10, 100),
        ]
        measured = await setting.compare(plain.side(setting.messages, 100), sides)
    bar = Bar.at_least(f"{measured[1].name}: times the plain INSERT of 100", measured[1].ratio, 1.5)
    return Outcome([table("Next, against the plain INSERT of batches of 100", measured)], [bar])


def _backlog(engine: Engine, setting: Setting, partitions: int, each: int) -> Side:
    name = f"next, {partitions} partition{'s' if partitions > 1 else ''} x {each}"
    return Backlog(engine, setting, f"next{partitions}x{each}", partitions, each).side(name, going_on(engine))


# --- HTTP -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class HttpBacklog(Backlog):
    """Over HTTP, with a connection for each caller."""

    target: Target | None = None
    leases: dict[int, bytes] = field(default_factory=dict)
    accept: str | None = None
    """The media type of the answers, if not JSON."""

    async def prepare(self, seconds: float) -> None:
        await Backlog.prepare(self, seconds)
        self.leases = {
            caller: (share.popped.lease_id or "").encode()
            for caller, share in enumerate(self.shares)
            if share.popped is not None
        }

    async def go_on(self, caller: int) -> int:
        share = self.shares[caller]
        body = b'{"queue":"%s","batch":%d,"partitions":%d}' % (
            share.queue.encode(),
            share.partitions * share.each,
            share.partitions,
        )
        path = f"/api/v1/lease/{self.leases[caller].decode()}/next"
        return await self._ask(caller, request("POST", path, body, accept=self.accept))

    def _asking(self, caller: int) -> Callable[[bytes], Awaitable[tuple[int, bytes]]]:
        assert self.target is not None
        return self.target.connections[caller].ask

    async def _ask(self, caller: int, asked: bytes) -> int:
        status, body = await self._asking(caller)(asked)
        if status == 204:  # the backlog is used up
            return 0
        if status != 200:
            raise RuntimeError(f"{asked[:80]!r} was answered {status}: {body[:200]!r}")
        start = body.index(b'"leaseId":"') + 11
        self.leases[caller] = body[start : start + 36]
        return body.count(b'"transactionId":') if self.accept is None else _packed_messages(body)

    def http_side(self) -> Side:
        kind = "HTTP" if self.accept is None else "packed"
        name = f"{kind} next, batch {self.partitions * self.each}, {self.callers} connections"
        return Side(name, self.go_on, self.prepare, callers=self.callers)


def _packed_messages(body: bytes) -> int:
    """How many messages an answer has, by its head."""
    size = int.from_bytes(body[4:8], "little")
    return sum([run[4] for run in msgspec.json.decode(body[8 : 8 + size])["runs"]])


async def packed_next_scenario(setting: Setting) -> Outcome:
    tables, bars = [], []
    async with served(setting) as target:
        await target.engine.configure(POP_QUEUE)
        for size, bar in ((100, 2.0), (1000, 6.0)):
            backlogs = [
                HttpBacklog(target.engine, setting, f"{name}{size}", 10, size // 10, 10, target=target, accept=accept)
                for name, accept in (("packed", wire.PACKED), ("json", None))
            ]
            base = target.plain.side(setting.messages, size)
            measured = await setting.compare(base, [backlog.http_side() for backlog in backlogs])
            bars.append(Bar.at_least(f"{measured[1].name}: times the plain INSERT", measured[1].ratio, bar))
            tables.append(table(f"HTTP next, packed and JSON, against the plain INSERT of batches of {size}", measured))
    return Outcome(tables, bars)


async def http_next_scenario(setting: Setting) -> Outcome:
    async with served(setting) as target:
        await target.engine.configure(POP_QUEUE)
        sides = []
        for size, partitions in ((100, 10), (10, 1)):
            backlog = HttpBacklog(target.engine, setting, f"http{size}", partitions, 10, 10, target=target)
            sides += [backlog.http_side(), Consumers(target, setting, size, 10).side()]
        measured = await setting.compare(target.plain.side(setting.messages, 100), sides)
    bar = Bar.at_least(f"{measured[1].name}: times the plain INSERT of 100", measured[1].ratio, 1.2)
    return Outcome([table("HTTP next, JSON, against the plain INSERT of batches of 100", measured)], [bar])
