"""Groups begin, move and go while messages are pushed, transactions are held and cursors are made in slices: each group
gets exactly what its beginning promises, in order and once."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from lockstep.config import Config
from lockstep.core.messages import Message
from lockstep.core.policy import GroupMode
from lockstep.core.records import Ack, PopRequest, Position, Subscription
from lockstep.storage.postgres.store import PostgresStore
from support.builders import batch

ROUNDS = 30 if os.environ.get("LOCKSTEP_SOAK") else 4
PARTITIONS = 60
BUSY = 10
"""Partitions that most pushes go to; the others are created while groups begin."""
MISSING_SECONDS_MAX = 120
"""A group that does not get a message in this time misses it."""
SLICES = Config(slice_partitions_max=7, slices_seconds_max=0.01, call_lock_seconds=0.05)
GROUPS: dict[str, GroupMode] = {"a": "ordered", "b": "ordered", "c": "shared", "d": "shared"}


@dataclass
class Pushed:
    """When a push began and ended, on a clock that ticks once per event."""

    partition: str
    began: int
    ended: int


@dataclass
class Storm:
    stores: list[PostgresStore]
    random: Random
    pushed: dict[int, Pushed] = field(default_factory=dict)
    over: bool = False
    _ticks: Iterator[int] = field(default_factory=itertools.count)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def tick(self) -> int:
        return next(self._ticks)

    def number(self) -> int:
        return next(self._numbers)

    def store(self) -> PostgresStore:
        return self.random.choice(self.stores)

    def partition(self) -> str:
        return f"p{self.random.randrange(BUSY if self.random.random() < 0.8 else PARTITIONS)}"

    def committed(self, numbers: dict[int, str], began: int) -> None:
        ended = self.tick()
        for number, partition in numbers.items():
            self.pushed[number] = Pushed(partition, began, ended)

    async def push(self) -> None:
        while not self.over:
            numbers = {self.number(): partition for partition in {self.partition() for _ in range(3)}}
            began = self.tick()
            await self.store().push([batch("q", partition=name, start=number) for number, name in numbers.items()])
            self.committed(numbers, began)

    async def hold(self, connection: asyncpg.Connection[Any]) -> None:
        """Transactions of somebody else, which push, stay open for a while and may be rolled back."""
        while not self.over:
            number, partition, began = self.number(), self.partition(), self.tick()
            transaction = connection.transaction()
            await transaction.start()
            payload = f'{{"n":{number}}}'
            await connection.execute("select lockstep.push('q', $1, $2::jsonb)", partition, payload)
            for _ in range(self.random.randrange(60)):
                await connection.execute("select 1")
            if self.random.random() < 0.3:
                await transaction.rollback()
            else:
                await transaction.commit()
                self.committed({number: partition}, began)

    async def make_cursors(self) -> None:
        """The duty."""
        place = None
        while not self.over:
            place = (await self.store().prune_groups(after=place)).next

    async def consume(self, group: str, mode: GroupMode) -> None:
        for _ in range(ROUNDS):
            await Round(self, group, mode).go()


@dataclass
class Round:
    """A group from one beginning to the next."""

    storm: Storm
    group: str
    mode: GroupMode
    got: dict[int, Message] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)

    async def go(self) -> None:
        kind = self.storm.random.choice(["start", "end", "all", "new"])
        before = self.storm.tick()
        await self.begin(kind)
        since = self.storm.tick()
        await self.take(50 if kind in {"start", "all"} else 1)
        pushed = dict(self.storm.pushed)
        from_start = kind in {"start", "all"}
        expected = {number for number, push in pushed.items() if from_start or push.began > since}
        async with asyncio.timeout(MISSING_SECONDS_MAX):
            while not expected <= self.got.keys():
                await self.take(1)
        for number, message in self.got.items():
            push = self.storm.pushed.get(number)
            assert push is None or push.partition == message.partition
            assert from_start or push is None or push.ended > before, f"{kind} of {self.group} shows what was before it"

    async def begin(self, kind: str) -> None:
        if kind in {"start", "end"}:
            await self.storm.store().seek("q", self.group, Position(kind))  # type: ignore[arg-type]
        else:
            await self.storm.store().delete_group(self.group, queue="q")
            subscription = Subscription(kind)  # type: ignore[arg-type]
            await self.storm.store().subscribe("q", self.group, subscription, mode=self.mode)

    async def take(self, pops: int) -> None:
        for _ in range(pops):
            batch, partitions = self.storm.random.choice([5, 50, 1000]), self.storm.random.choice([1, 5, 50])
            [popped] = await self.storm.store().pop(
                [PopRequest(queue="q", group=self.group, batch=batch, partitions=partitions, lease_seconds=600)]
            )
            for message in popped.messages():
                self.see(message)
            if popped.lease_id is not None:
                [outcome] = await self.storm.store().ack([Ack(lease_id=popped.lease_id)])
                assert outcome.success

    def see(self, message: Message) -> None:
        number = message.json()["n"]
        assert number not in self.got, f"{self.group} got {message} twice"
        self.got[number] = message
        if self.mode == "ordered":
            assert message.seq == self.last.get(message.partition, message.seq - 1) + 1, f"{message} is out of order"
            self.last[message.partition] = message.seq


@pytest_asyncio.fixture
async def stores(dsn: str) -> AsyncIterator[list[PostgresStore]]:
    stores = [PostgresStore(dsn, config=SLICES) for _ in range(3)]
    yield stores
    for store in stores:
        await store.close()


@pytest.mark.parametrize("seed", [1, 2])
async def test_each_group_gets_what_its_beginning_promises(stores: list[PostgresStore], dsn: str, seed: int) -> None:
    storm = Storm(stores, Random(seed))
    await stores[0].push([batch("q", partition="p0", start=storm.number())])
    for group, mode in GROUPS.items():
        await stores[0].subscribe("q", group, Subscription(), mode=mode)
    holder = await asyncpg.connect(dsn)
    async with asyncio.TaskGroup() as beside:
        for work in (storm.push(), storm.push(), storm.hold(holder), storm.make_cursors(), storm.make_cursors()):
            beside.create_task(work)
        try:
            async with asyncio.TaskGroup() as consumers:
                for group, mode in GROUPS.items():
                    consumers.create_task(storm.consume(group, mode))
        finally:
            storm.over = True
    await holder.close()
    assert await stores[0].verify() == []
