"""Random operations on stores: what a machine may do, whatever it then checks.

An operation refers to leases, messages and dead letters by counting back from the newest, so that an example
reads the same whatever ids a store gives, and shrinks to the newest ones.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from lockstep.core.endings import AckStatus
from lockstep.core.messages import Batch, Columns, Message, Receipt
from lockstep.core.names import QUEUE_MODE
from lockstep.core.policy import QueueOptions
from lockstep.core.records import (
    Ack,
    Continued,
    DeadLetterFilter,
    NextRequest,
    PendingRequest,
    Popped,
    PopRequest,
    Position,
    Renewal,
    Subscription,
)
from lockstep.errors import LockstepError
from lockstep.storage.base import Store
from support.clock import SetClock

QUEUES = ["shop.a", "shop.b", "bank.a"]
PARTITIONS = ["Default", "p", "q"]
GROUPS = [QUEUE_MODE, "g", "h"]
UUID_TEXT = "0190a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"
TRANSACTION_IDS = [None, None, "t1", "t2", UUID_TEXT, UUID_TEXT.upper()]
TRACES = [None, None, "0190a1b2-c3d4-7e5f-8a6b-00000000000a", "0190a1b2-c3d4-7e5f-8a6b-00000000000b"]
GARBAGE = "garbage"
NO_PARTITION = 2**40

# The first of each comes more often: operations must meet to have something to disagree about.
queues = st.sampled_from([QUEUES[0], *QUEUES])
partitions = st.sampled_from([PARTITIONS[0], *PARTITIONS])
groups = st.sampled_from([GROUPS[0], *GROUPS])
seldom = st.sampled_from([False, False, False, True])
waits = st.sampled_from([0, 0, 0.001, 1, 2.5, 5, 10, 30, 31, 400])
modes = st.sampled_from(["all", "all", "all", "new", "from"])
back = st.integers(0, 6)
"""How many to count back from the newest."""
statuses = st.sampled_from(["completed", "completed", "failed", "failed", "retry", "released", "dlq"])

options = st.builds(
    QueueOptions,
    lease_seconds=st.sampled_from([300, 10]),
    retry_limit=st.sampled_from([3, 0, 1]),
    retry_delay_ms=st.sampled_from([0, 1000, 2500]),
    retry_backoff=st.sampled_from([1.0, 2.0]),
    retry_delay_ms_max=st.sampled_from([3_600_000, 3000]),
    on_exhausted=st.sampled_from(["dead", "stop", "drop"]),
    max_size=st.sampled_from([0, 0, 6]),
    priority=st.sampled_from([0, 1, -1]),
    delay_seconds=st.sampled_from([0, 0, 0, 5]),
    window_seconds=st.sampled_from([0, 0, 0, 5]),
    max_wait_seconds=st.sampled_from([0, 0, 0, 30]),
    compression=st.sampled_from(["zstd", "none"]),
)


@dataclass(frozen=True)
class BatchPlan:
    queue: str
    partition: str
    transaction_ids: list[str | None]
    trace_id: str | None


batches = st.lists(
    st.builds(
        BatchPlan,
        queue=queues,
        partition=partitions,
        transaction_ids=st.lists(st.sampled_from(TRANSACTION_IDS), min_size=1, max_size=4),
        trace_id=st.sampled_from(TRACES),
    ),
    min_size=1,
    max_size=3,
)


@dataclass(frozen=True)
class PopPlan:
    target: dict[str, str]
    group: str
    batch: int
    partitions: int
    lease_seconds: float | None
    auto_ack: bool
    mode: str


targets = st.one_of(
    queues.map(lambda queue: {"queue": queue}),
    queues.map(lambda queue: {"queue": queue}),
    st.tuples(queues, partitions).map(lambda pair: {"queue": pair[0], "partition": pair[1]}),
    st.sampled_from([{"namespace": "shop"}, {"task": "a"}, {"namespace": "shop", "task": "a"}]),
)
pops = st.builds(
    PopPlan,
    target=targets,
    group=groups,
    batch=st.integers(1, 6),
    partitions=st.integers(1, 3),
    lease_seconds=st.sampled_from([None, 1, 60]),
    auto_ack=seldom,
    mode=modes,
)


@dataclass(frozen=True)
class NextPlan:
    pop: PopPlan
    which: int
    hold_seconds: float
    give_way: bool


nexts = st.builds(NextPlan, pop=pops, which=back, hold_seconds=st.sampled_from([0, 1, 5, 1000, 1000]), give_way=seldom)


@dataclass(frozen=True)
class AckPlan:
    form: str
    """message, id, pushed: by message; lease, partition, seq: by lease; unknown: of nothing that there is."""
    which: int
    status: AckStatus
    lease: str
    """own, none, garbage, or another"""
    group: str | None
    """None is the group of the delivery."""
    retry_seconds: float | None


acks = st.lists(
    st.builds(
        AckPlan,
        form=st.sampled_from(
            ["message", "message", "message", "id", "lease", "partition", "seq", "seq", "pushed", "unknown"]
        ),
        which=back,
        status=statuses,
        lease=st.sampled_from(["own", "own", "own", "none", "garbage", "another"]),
        group=st.one_of(st.none(), st.none(), st.none(), groups),
        retry_seconds=st.sampled_from([None, None, -1, 0, 2.5, 40]),
    ),
    min_size=1,
    max_size=4,
)

positions = st.one_of(
    st.sampled_from([Position("start"), Position("end"), Position("current")]),
    st.integers(0, 12).map(lambda seq: Position("seq", seq=seq)),
    st.just(Position("time")),
)


@dataclass(frozen=True)
class Administration:
    """Anything else: a method of `Operations` and its arguments."""

    verb: str
    values: dict[str, Any]


def administration(verb: str, **values: st.SearchStrategy[Any]) -> st.SearchStrategy[Administration]:
    return st.builds(Administration, st.just(verb), st.fixed_dictionaries(values))


some_queue = st.one_of(st.none(), queues)
some_partition = st.one_of(st.none(), partitions)
# One rule for all of it: an example with more seeks than pops has little to say.
administrations = st.one_of(
    administration(
        "configure",
        queue=queues,
        options=options,
        names=st.sampled_from([{}, {}, {"task": "a"}, {"namespace": "bank"}]),
    ),
    administration("delete_queue", queue=queues),
    administration(
        "clear", queue=queues, partition=some_partition, scope=st.sampled_from(["unleased", "unleased", "all"])
    ),
    administration("seek", queue=queues, group=groups, position=positions, partition=some_partition, ago=back),
    administration("delete_group", group=groups, queue=some_queue, forget=st.booleans()),
    administration("subscribe", group=groups, queue=queues, mode=modes),
    # Queue mode always begins with the first message, so nothing is stored for it.
    administration("set_subscription", group=st.sampled_from(GROUPS[1:]), queue=some_queue, mode=modes),
)


@dataclass(frozen=True)
class Delivered:
    """A message that a machine can acknowledge."""

    message: Message | Receipt
    group: str
    lease_id: str | None

    @property
    def message_id(self) -> str:
        return self.message.id if isinstance(self.message, Message) else self.message.message_id


class Operations(RuleBasedStateMachine):
    """Draws operations and performs them by `call`, which subclasses define."""

    runner: asyncio.Runner
    shared: frozenset[str] = frozenset()
    """The groups that are shared; acks have a time to retry at only where there are any."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = SetClock()
        self._number = 0
        self._delivered: list[Delivered] = []
        self._pushed: list[Delivered] = []
        self._leases: list[str] = [GARBAGE]
        self._dead_letter_ids: list[int] = []
        self.broken = False

    @contextmanager
    def breaking(self) -> Iterator[None]:
        """Notes a failure, after which the teardown has nothing to add."""
        try:
            yield
        except BaseException:
            self.broken = True
            raise

    def call(self, verb: str, *arguments: Any, **keywords: Any) -> Any:
        """Perform a verb and check what comes of it; returns the result, or the LockstepError that it raised."""
        raise NotImplementedError

    @initialize(first=options, second=options, plans=batches)
    def begin(self, first: QueueOptions, second: QueueOptions, plans: list[BatchPlan]) -> None:
        self.call("configure", QUEUES[0], first)
        self.call("configure", QUEUES[1], second)
        self.push(plans, 0)

    @rule(plans=batches, wait=waits)
    def push(self, plans: list[BatchPlan], wait: float) -> None:
        self.clock.advance(wait)
        self._note_pushed(self.call("push", self._batches(plans)))

    @rule(plans=batches, plan=pops, wait=waits)
    def push_and_pop(self, plans: list[BatchPlan], plan: PopPlan, wait: float) -> None:
        self.push(plans, 0)
        self.pop([plan], wait)

    @rule(plans=batches, plan=pops, more=acks, wait=waits)
    def push_and_consume(self, plans: list[BatchPlan], plan: PopPlan, more: list[AckPlan], wait: float) -> None:
        self.push(plans, 0)
        self.pop([plan], wait)
        self.ack(more, 0)

    @rule(plans=st.lists(pops, min_size=1, max_size=2), wait=waits)
    def pop(self, plans: list[PopPlan], wait: float) -> None:
        self.clock.advance(wait)
        requests = [self._request(plan) for plan in plans]
        for popped in self.call("pop", requests):
            self._note_popped(popped)

    @rule(plan=pops, wait=waits, times=st.integers(2, 3))
    def pop_again(self, plan: PopPlan, wait: float, times: int) -> None:
        """The same consumer comes back without having said anything."""
        for _ in range(times):
            self.pop([plan], wait)

    @rule(plan=pops, waits=st.tuples(waits, waits), status=statuses)
    def pop_and_settle(self, plan: PopPlan, waits: tuple[float, float], status: AckStatus) -> None:
        """A consumer does its work, and comes back."""
        self.clock.advance(waits[0])
        [popped] = self.call("pop", [self._request(plan)])
        self._note_popped(popped)
        if popped.lease_id is not None:
            self.call("ack", [Ack(lease_id=popped.lease_id, status=status, error="no")])
        self.pop([plan], waits[1])

    @rule(plan=nexts, wait=waits)
    def next(self, plan: NextPlan, wait: float) -> None:
        """Of any lease, and whatever it was popped by."""
        self._next(_newest(self._leases, plan.which), plan, wait)

    @rule(plans=batches, plan=nexts, more=batches, waits=st.lists(waits, min_size=1, max_size=3))
    def consume_on(self, plans: list[BatchPlan], plan: NextPlan, more: list[BatchPlan], waits: list[float]) -> None:
        """A consumer that continues its lease, while messages come."""
        self.push(plans, waits[0])
        [popped] = self.call("pop", [self._lasting(plan.pop)])
        self._note_popped(popped)
        for wait in waits:
            self.push(more, 0)
            if popped.lease_id is not None:
                popped = self._next(popped.lease_id, plan, wait)

    def _next(self, lease_id: str, plan: NextPlan, wait: float) -> Popped:
        self.clock.advance(wait)
        request = NextRequest(lease_id=lease_id, pop=self._lasting(plan.pop), give_way=plan.give_way)
        result: list[Continued] | LockstepError = self.call("next", [request], hold_seconds=plan.hold_seconds)
        if isinstance(result, LockstepError):
            return Popped(request.pop.group)
        self._note_popped(result[0].popped)
        return result[0].popped

    @rule(plans=acks, wait=waits)
    def ack(self, plans: list[AckPlan], wait: float) -> None:
        self.clock.advance(wait)
        self.call("ack", self._acks(plans))

    @rule(plans=acks, more=batches)
    def transaction(self, plans: list[AckPlan], more: list[BatchPlan]) -> None:
        result = self.call("transaction", self._acks(plans), self._batches(more))
        if not isinstance(result, LockstepError):
            self._note_pushed(result.pushed)

    @rule(which=back, seconds=st.sampled_from([None, 0.5, 30, 1000]), wait=waits)
    def renew(self, which: int, seconds: float | None, wait: float) -> None:
        self.call("renew", [Renewal(lease_id=_newest(self._leases, which), seconds=seconds)])
        self.clock.advance(wait)

    @rule(queue=queues, partition=some_partition, group=groups, wait=waits)
    def has_pending(self, queue: str, partition: str | None, group: str, wait: float) -> None:
        self.clock.advance(wait)
        self.call("has_pending", [PendingRequest(queue=queue, partition=partition, group=group)])

    @precondition(lambda self: len(self._dead_letter_ids) > 0)
    @rule(which=st.one_of(st.none(), back), queue=some_queue, limit=st.sampled_from([1, 1000]))
    def redrive(self, which: int | None, queue: str | None, limit: int) -> None:
        self.call("redrive", self._dead_letters(which, queue), limit=limit)

    @precondition(lambda self: len(self._dead_letter_ids) > 0)
    @rule(which=st.one_of(st.none(), back), queue=some_queue)
    def purge(self, which: int | None, queue: str | None) -> None:
        self.call("purge", self._dead_letters(which, queue))

    @rule(plan=administrations)
    def administer(self, plan: Administration) -> None:
        getattr(self, f"_{plan.verb}")(**plan.values)

    def _configure(self, queue: str, options: QueueOptions, names: dict[str, str]) -> None:
        self.call("configure", queue, options, **names)

    def _delete_queue(self, queue: str) -> None:
        self.call("delete_queue", queue)

    def _clear(self, queue: str, partition: str | None, scope: str) -> None:
        self.call("clear", queue, partition=partition, scope=scope)

    def _seek(self, queue: str, group: str, position: Position, partition: str | None, ago: int) -> None:
        if position.kind == "time":
            position = Position("time", at=self.clock.ago(ago * 5))
        self.call("seek", queue, group, position, partition=partition)

    def _delete_group(self, group: str, queue: str | None, forget: bool) -> None:
        self.call("delete_group", group, queue=queue, forget_subscription=forget)

    def _subscribe(self, group: str, queue: str, mode: str) -> None:
        modes = {"mode": "shared"} if group in self.shared else {}
        self.call("subscribe", queue, group, self._subscription(mode), **modes)

    def _set_subscription(self, group: str, queue: str | None, mode: str) -> None:
        self.call("set_subscription", group, self._subscription(mode), queue=queue)

    # --- From plans to arguments

    def _batches(self, plans: list[BatchPlan]) -> list[Batch]:
        made = []
        for plan in plans:
            count = len(plan.transaction_ids)
            numbers = range(self._number + 1, self._number + count + 1)
            self._number += count
            columns = Columns([b'{"n":%d}' % number for number in numbers])
            if any(plan.transaction_ids):
                columns.transaction_ids = plan.transaction_ids
            if plan.trace_id:
                columns.trace_ids = [plan.trace_id] + [None] * (count - 1)
            made.append(Batch(plan.queue, plan.partition, columns))
        return made

    def _request(self, plan: PopPlan) -> PopRequest:
        return PopRequest(
            **plan.target,  # type: ignore[arg-type]
            group=plan.group,
            batch=plan.batch,
            partitions=plan.partitions,
            lease_seconds=plan.lease_seconds,
            auto_ack=plan.auto_ack,
            subscription=self._subscription(plan.mode),
            mode="shared" if plan.group in self.shared else None,
        )

    def _lasting(self, plan: PopPlan) -> PopRequest:
        return self._request(dataclasses.replace(plan, auto_ack=False))

    def _subscription(self, mode: str) -> Subscription:
        if mode == "from":
            return Subscription("from", self.clock.now - timedelta(seconds=5))
        return Subscription(mode)  # type: ignore[arg-type]

    def _acks(self, plans: list[AckPlan]) -> list[Ack]:
        return [self._ack(plan) for plan in plans]

    def _ack(self, plan: AckPlan) -> Ack:
        known = self._pushed if plan.form == "pushed" else self._delivered
        if plan.form == "unknown" or not known:
            return Ack(partition_id=NO_PARTITION, transaction_id=GARBAGE, status=plan.status)
        delivered = _newest(known, plan.which)
        ack = Ack(
            partition_id=delivered.message.partition_id,
            transaction_id=delivered.message.transaction_id,
            group=plan.group or delivered.group,
            lease_id=self._lease(plan, delivered),
            status=plan.status,
            error=None if plan.status == "completed" else "no",
            retry_at=self._retry_at(plan),
        )
        if plan.form == "id":
            return msgspec.structs.replace(ack, transaction_id=delivered.message_id)
        if plan.form in ("message", "pushed"):
            return ack
        return msgspec.structs.replace(
            ack,
            lease_id=ack.lease_id or GARBAGE,
            transaction_id=None,
            partition_id=None if plan.form == "lease" else ack.partition_id,
            seq=delivered.message.seq if plan.form == "seq" else None,
        )

    def _retry_at(self, plan: AckPlan) -> datetime | None:
        if not self.shared or plan.retry_seconds is None or plan.status not in ("failed", "retry"):
            return None
        return self.clock.now + timedelta(seconds=plan.retry_seconds)

    def _lease(self, plan: AckPlan, delivered: Delivered) -> str | None:
        another = _newest(self._leases, plan.which + 1)
        return {"own": delivered.lease_id, "none": None, "garbage": GARBAGE, "another": another}[plan.lease]

    def _dead_letters(self, which: int | None, queue: str | None) -> DeadLetterFilter:
        if which is None or not self._dead_letter_ids:
            return DeadLetterFilter(queue=queue)
        return DeadLetterFilter(ids=(_newest(self._dead_letter_ids, which),))

    # --- From results to what later operations refer to

    def _note_pushed(self, result: Sequence[Receipt] | LockstepError) -> None:
        if not isinstance(result, LockstepError):
            self._pushed += [Delivered(receipt, QUEUE_MODE, None) for receipt in result]

    def _note_popped(self, popped: Popped) -> None:
        self._delivered += [Delivered(m, popped.group, popped.lease_id) for m in popped.messages()]
        if popped.lease_id is not None:
            self._leases.append(popped.lease_id)


def _newest(known: Sequence[Any], which: int) -> Any:
    return known[-1 - which % len(known)]


async def attempt(store: Store, verb: str, *arguments: Any, **keywords: Any) -> Any:
    """The result of a verb, or the error that it raised on purpose."""
    try:
        return await getattr(store, verb)(*arguments, **keywords)
    except LockstepError as error:
        return error
