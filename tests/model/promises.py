"""The promises, as simply as they can be said: a model that is told what a store answered, and objects.

It does not say which partition a pop must choose. It says what may be delivered (the next messages, to nobody
else, when they are visible), what must be (everything that is due, when there is room), and what every answer
must be. It shares no code with the stores or with `core/rules.py`.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from lockstep.core.messages import Batch, Receipt
from lockstep.core.names import QUEUE_MODE
from lockstep.core.policy import QueueOptions
from lockstep.core.records import (
    Ack,
    AckOutcome,
    DeadLetter,
    DeadLetterFilter,
    LeaseInfo,
    NextRequest,
    PartitionLag,
    PendingRequest,
    Popped,
    PopRequest,
    Position,
    Renewal,
    Renewed,
    Subscription,
)
from support.clock import START


class Broken(AssertionError):
    """A promise was broken."""


def promise(kept: bool, text: str) -> None:
    if not kept:
        raise Broken(text)


@dataclass
class Stored:
    seq: int
    payload: bytes
    created_at: datetime
    transaction_id: str | None
    id: str | None
    """None until it is seen: a redriven message."""


@dataclass
class Lease:
    id: str
    to: int
    until: datetime


@dataclass
class Cursor:
    acked: int = 0
    attempts: int = 0
    lease: Lease | None = None
    stopped: bool = False
    not_before: datetime | None = None
    """A retry delay that must be waited for."""
    due_by: datetime | None = None
    """From when a pop must find what is there."""

    def leased(self, now: datetime) -> bool:
        return self.lease is not None and self.lease.until > now

    def release(self) -> None:
        self.lease = None


@dataclass
class Partition:
    name: str
    id: int | None = None
    last_seq: int = 0
    messages: dict[int, Stored] = field(default_factory=dict)
    cursors: dict[str, Cursor] = field(default_factory=dict)

    def after(self, seq: int) -> list[Stored]:
        return [message for key, message in sorted(self.messages.items()) if key > seq]

    def head(self, seq: int) -> int | None:
        return next((message.seq for message in self.after(seq)), None)

    def resolve(self, identity: str | None) -> int | None:
        for message in self.messages.values():
            if message.transaction_id is not None and message.transaction_id == identity:
                return message.seq
        return next((m.seq for m in self.messages.values() if m.id == identity), None)


@dataclass
class Queue:
    name: str
    options: QueueOptions
    namespace: str
    task: str
    created_at: datetime
    partitions: dict[str, Partition] = field(default_factory=dict)
    groups: set[str] = field(default_factory=set)
    subscriptions: dict[str, tuple[Subscription, datetime]] = field(default_factory=dict)
    """By group: where it begins, and when that was stored."""

    def pending(self) -> int:
        if not self.groups:
            return sum(len(partition.messages) for partition in self.partitions.values())
        return max(sum(len(p.after(p.cursors[group].acked)) for p in self.partitions.values()) for group in self.groups)


Death = tuple[str, str, int, str, int, str | None]
"""Queue, partition, seq, group, attempts, error."""
FirstPoll = tuple[str, str | None, str | None, str | None]
"""Group, queue, namespace, task."""


class Promises:
    def __init__(self) -> None:
        self.now = START
        self.queues: dict[str, Queue] = {}
        self.dead: list[Death] = []
        self.first_polls: dict[FirstPoll, datetime] = {}
        """When groups that begin with new messages first polled for queues that did not exist. No example lasts as long
        as they are remembered."""

    # --- Queues

    def configured(self, name: str, options: QueueOptions, namespace: str | None, task: str | None) -> None:
        queue = self._queue(name)
        self._partition(queue, "Default")
        queue.options = options
        queue.namespace = queue.namespace if namespace is None else namespace
        queue.task = queue.task if task is None else task

    def deleted(self, name: str, existed: bool) -> None:
        promise(existed == (name in self.queues), f"delete_queue({name}) answered {existed}")
        self.queues.pop(name, None)
        self.dead = [death for death in self.dead if death[0] != name]

    def cleared(self, name: str, partition: str | None, scope: str, removed: int) -> None:
        gone = 0
        for part in self._parts(name, partition):
            heads = {group: part.head(cursor.acked) for group, cursor in part.cursors.items()}
            kept = self._kept(part) if scope == "unleased" else {}
            removed_seqs = part.messages.keys() - kept.keys()
            gone += len(removed_seqs)
            part.messages = kept
            self.dead = [d for d in self.dead if d[:2] != (name, part.name) or d[2] not in removed_seqs]
            for group, cursor in part.cursors.items():
                # A cursor whose head was removed starts anew with what is left.
                if scope == "all" or (heads[group] in removed_seqs and not cursor.leased(self.now)):
                    part.cursors[group] = Cursor(acked=part.last_seq if scope == "all" else cursor.acked)
                    self._due_again(self.queues[name], part, part.cursors[group])
        promise(removed == gone, f"clear({name}, {partition}, {scope}) removed {removed}, not {gone}")

    def _kept(self, part: Partition) -> dict[int, Stored]:
        return {
            seq: message
            for seq, message in part.messages.items()
            if any(
                cursor.leased(self.now) and cursor.lease and cursor.acked < seq <= cursor.lease.to
                for cursor in part.cursors.values()
            )
        }

    # --- Messages in

    def pushed(self, batches: Sequence[Batch], receipts: Sequence[Receipt]) -> None:
        """A push that was accepted."""
        index = 0
        added: Counter[str] = Counter()
        for batch in batches:
            queue = self._queue(batch.queue)
            part = self._partition(queue, batch.partition)
            for position, payload in enumerate(batch.columns.payloads):
                receipt = receipts[index]
                given = (batch.columns.transaction_ids or [None] * len(batch.columns))[position]
                added[batch.queue] += self._push_one(queue, part, payload, given, receipt)
                promise(receipt.index == index, f"receipt {index} says {receipt.index}")
                index += 1
        promise(index == len(receipts), f"{len(receipts)} receipts for {index} messages")
        for name in added:
            queue = self.queues[name]
            limit = queue.options.max_size
            if limit and added[name]:
                promise(queue.pending() <= limit, f"{name} holds {queue.pending()} of {limit}")
        for receipt in receipts:
            self._check_occupancy(receipt)

    def _check_occupancy(self, receipt: Receipt) -> None:
        queue = self.queues[receipt.queue]
        limit = queue.options.max_size
        expected = (queue.pending(), max(limit - queue.pending(), 0)) if limit else (None, None)
        promise((receipt.depth, receipt.remaining) == expected, f"{receipt}: not {expected}")

    def _push_one(self, queue: Queue, part: Partition, payload: bytes, given: str | None, receipt: Receipt) -> bool:
        part.id = part.id or receipt.partition_id
        promise(part.id == receipt.partition_id, f"{part.name} has two ids")
        first = next((m for m in part.messages.values() if given and m.transaction_id == given), None)
        if first is not None:
            expected = ("duplicate", first.seq, first.id)
            promise((receipt.status, receipt.seq, receipt.message_id) == expected, f"{receipt}: not {expected}")
            return False
        promise((receipt.status, receipt.seq) == ("queued", part.last_seq + 1), f"{receipt}: {part.last_seq}")
        promise(receipt.transaction_id == (given or receipt.message_id), f"{receipt}: transaction id")
        self._append(queue, part, Stored(receipt.seq, payload, self.now, given, receipt.message_id))
        return True

    def _append(self, queue: Queue, part: Partition, message: Stored) -> None:
        options = queue.options
        for cursor in part.cursors.values():
            visible = self.now + max(options.delay, options.window)
            drained = part.head(cursor.acked) is None
            if drained:
                cursor.due_by = max(cursor.due_by or visible, visible)
            elif options.window_seconds and cursor.lease is None:
                cursor.due_by = max(cursor.due_by or visible, self.now + options.window)
        part.last_seq = message.seq
        part.messages[message.seq] = message

    def refused_as_full(self, batches: Sequence[Batch], details: dict[str, Any]) -> None:
        """A push that was refused must not have fitted."""
        queue = self.queues.get(details["queue"])
        promise(queue is not None and queue.options.max_size > 0, f"QueueFull without a limit: {details}")
        assert queue is not None
        fresh: set[tuple[str, object]] = set()
        for number, batch in enumerate(batches):
            if batch.queue != queue.name:
                continue
            part = queue.partitions.get(batch.partition, Partition(batch.partition))
            for position in range(len(batch.columns)):
                given = (batch.columns.transaction_ids or [None] * len(batch.columns))[position]
                if given is None:
                    fresh.add((part.name, (number, position)))
                elif not any(m.transaction_id == given for m in part.messages.values()):
                    fresh.add((part.name, given))
        expected = {"queue": queue.name, "depth": queue.pending(), "max_size": queue.options.max_size}
        promise(details == expected, f"QueueFull says {details}, not {expected}")
        promise(queue.pending() + len(fresh) > queue.options.max_size, f"QueueFull, but {len(fresh)} would fit")

    # --- Messages out

    def asked(self, request: PopRequest) -> None:
        """A request makes its group, whatever it gets."""
        if request.subscription.mode == "new" and request.group != QUEUE_MODE:
            if request.queue not in self.queues:
                place = (request.group, request.queue, request.namespace, request.task)
                self.first_polls.setdefault(place, self.now)
            for queue in self._queues_of(request):
                self._begun(queue, request.group)
        for queue in self._queues_of(request):
            self.subscribed(queue.name, request.group, request.subscription)

    def _begun(self, queue: Queue, group: str) -> None:
        """A new group begins where it first polled, if that was before the queue was there."""
        if group in queue.groups:
            return
        since = [
            at for (who, *place), at in self.first_polls.items() if who == group and self._is_about(queue, place, at)
        ]
        self.first_polls.pop((group, queue.name, None, None), None)
        if since:
            queue.subscriptions.setdefault(group, (Subscription("new"), min(since)))

    def _is_about(self, queue: Queue, place: Sequence[str | None], at: datetime) -> bool:
        name, namespace, task = place
        if name is not None:
            return name == queue.name
        return namespace in (None, queue.namespace) and task in (None, queue.task) and at <= queue.created_at

    def popped(
        self,
        request: PopRequest,
        popped: Popped,
        lags: dict[str, list[PartitionLag]],
        after: NextRequest | None = None,
    ) -> None:
        """What one pop gave; `lags` is where all cursors are afterwards. `after`: it continued a lease, and then a
        partition may give less than fits, and way to others."""
        room, claims = request.batch, request.partitions
        delivered: dict[tuple[str, str], list[Any]] = {}
        for message in popped.messages():
            delivered.setdefault((message.queue, message.partition), []).append(message)
        promise(len(delivered) <= request.partitions, f"{len(delivered)} partitions for {request.partitions}")
        promise(len(popped) <= request.batch, f"{len(popped)} messages for {request.batch}")
        promise((popped.lease_id is None) == (request.auto_ack or not delivered), "a lease, or none")
        queues = self._queues_of(request)
        self.asked(request)
        for queue in queues:
            if room == 0 or claims == 0:
                break
            chosen = [p for p in queue.partitions.values() if request.partition in (None, p.name)]
            for name in [partition for where, partition in delivered if where == queue.name]:
                messages = delivered.pop((queue.name, name))
                most = room if after is None else min(len(messages), room)
                self._deliver(request, queue, queue.partitions[name], messages, popped, most)
                room, claims = room - len(messages), claims - 1
            seen = {lag.partition: lag for lag in lags.get(queue.name, []) if lag.group == request.group}
            served = popped.partition_ids
            for part in chosen:
                if part.id is None or part.id not in served:
                    full = room == 0 or claims == 0 or (after is not None and after.give_way)
                    self._passed_over(request, queue, part, seen[part.name], full=full)
        promise(not delivered, f"delivered from outside the request: {list(delivered)}")

    def _queues_of(self, request: PopRequest) -> list[Queue]:
        if request.queue is not None:
            return [self.queues[request.queue]] if request.queue in self.queues else []
        found = [
            queue
            for queue in self.queues.values()
            if request.namespace in (None, queue.namespace) and request.task in (None, queue.task)
        ]
        return sorted(found, key=lambda queue: (-queue.options.priority, queue.name))

    def _deliver(
        self,
        request: PopRequest,
        queue: Queue,
        part: Partition,
        messages: list[Any],
        popped: Popped,
        room: int,
    ) -> None:
        where = f"{queue.name}/{part.name} for {request.group}"
        cursor = part.cursors[request.group]
        promise(not cursor.leased(self.now), f"{where}: delivered under another's live lease")
        promise(not cursor.stopped, f"{where}: delivered though stopped")
        promise(cursor.not_before is None or cursor.not_before <= self.now, f"{where}: before its retry time")
        self._put_right(queue, part, request.group, cursor)
        promise(not cursor.stopped, f"{where}: delivered though exhausted")
        ahead = part.after(cursor.acked)
        visible = [m for m in ahead if m.created_at + queue.options.delay <= self.now]
        expected = visible[: min(room, len(visible))]
        found, wanted = [m.seq for m in messages], [m.seq for m in expected]
        promise(found == wanted, f"{where}: delivered {found}, not {wanted}")
        promise(ahead[-1].created_at + queue.options.window <= self.now, f"{where}: delivered in an open window")
        for message, stored in zip(messages, expected, strict=True):
            stored.id = stored.id or message.id
            promise((message.id, message.payload) == (stored.id, stored.payload), f"{where}: other content")
            promise(message.created_at == stored.created_at, f"{where}: another time")
            promise(message.attempt == cursor.attempts + 1, f"{where}: attempt {message.attempt}")
        cursor.not_before = None
        cursor.due_by = self.now
        last = messages[-1].seq
        if request.auto_ack:
            cursor.acked, cursor.attempts = last, 0
            self._due_again(queue, part, cursor)
            return
        seconds = request.lease_seconds or queue.options.lease_seconds
        until = self.now + timedelta(seconds=seconds)
        assert popped.lease_id is not None
        assert popped.expires_at is not None
        promise(popped.expires_at <= until, f"{where}: promised until {popped.expires_at}")
        cursor.lease = Lease(popped.lease_id, last, until)

    def _put_right(self, queue: Queue, part: Partition, group: str, cursor: Cursor) -> None:
        """What a pop does to a cursor that it looks at: charge an expired lease, pass what waited too long."""
        options = queue.options
        head = part.head(cursor.acked)
        if cursor.lease is not None:
            cursor.release()
            cursor.due_by = self.now
            if head is not None:
                attempts = cursor.attempts + 1
                self._charge(queue, part, group, cursor, head, attempts, "lease expired")
        if cursor.stopped or options.max_wait is None:
            return
        for message in part.after(cursor.acked):
            if message.created_at + options.max_wait >= self.now:
                break
            cursor.acked, cursor.attempts = message.seq, 0

    def _charge(
        self,
        queue: Queue,
        part: Partition,
        group: str,
        cursor: Cursor,
        seq: int,
        attempts: int,
        error: str | None,
    ) -> bool:
        """A delivery failed; says whether the cursor passed the message."""
        if attempts <= queue.options.retry_limit:
            cursor.attempts = attempts
            return False
        if queue.options.on_exhausted == "stop":
            cursor.attempts, cursor.stopped = attempts, True
            return False
        if queue.options.on_exhausted == "dead":
            self.dead.append((queue.name, part.name, seq, group, attempts, error))
        cursor.acked, cursor.attempts = seq, 0
        return True

    def _passed_over(
        self, request: PopRequest, queue: Queue, part: Partition, seen: PartitionLag, *, full: bool
    ) -> None:
        """A partition that gave nothing: it had nothing due, or there was no room."""
        where = f"{queue.name}/{part.name} for {request.group}"
        cursor = part.cursors[request.group]
        if cursor.leased(self.now) or cursor.stopped:
            return
        dead = list(self.dead)
        right = copy.deepcopy(cursor)
        self._put_right(queue, part, request.group, right)
        ahead = part.after(right.acked)
        if ahead and right.due_by is not None and right.due_by <= self.now and not right.stopped:
            visible_at = self._visible_at(queue, ahead)
            promise(full or visible_at > self.now, f"{where}: due, and not delivered though there was room")
            # If it was looked at, it is due when it is visible, by the options of now, whatever comes later.
            cursor.due_by = right.due_by = max(right.due_by, visible_at)
        if self._agrees(part, right, seen) and not self._agrees(part, cursor, seen):
            part.cursors[request.group] = right
            self._due_again(queue, part, right)
        else:
            # Nobody looked at it, or there was nothing to put right.
            self.dead = dead

    def _agrees(self, part: Partition, cursor: Cursor, seen: PartitionLag) -> bool:
        return (
            part.head(seen.acked) == part.head(cursor.acked)
            and seen.stopped == cursor.stopped
            and seen.attempts == cursor.attempts
        )

    def _due_again(self, queue: Queue, part: Partition, cursor: Cursor, *, not_before: datetime | None = None) -> None:
        """The cursor has no lease, and its due time is set anew."""
        ahead = part.after(cursor.acked)
        cursor.not_before = not_before
        cursor.due_by = None
        if ahead:
            visible_at = self._visible_at(queue, ahead)
            cursor.due_by = max(self.now, visible_at, not_before or visible_at)

    def _visible_at(self, queue: Queue, ahead: list[Stored]) -> datetime:
        return max(ahead[0].created_at + queue.options.delay, ahead[-1].created_at + queue.options.window)

    def pending(self, request: PendingRequest, answer: bool) -> None:
        queue = self.queues.get(request.queue)
        if queue is None:
            promise(not answer, f"{request}: pending, but there is no such queue")
            return
        if request.group not in queue.groups:
            promise(answer or request.partition is not None, f"{request}: a new group may find something")
            return
        for part in queue.partitions.values():
            cursor = part.cursors[request.group]
            if request.partition not in (None, part.name) or cursor.stopped or cursor.leased(self.now):
                continue
            due_by = self.now if cursor.lease is not None else cursor.due_by
            if part.after(cursor.acked) and due_by is not None and due_by <= self.now:
                promise(answer, f"{request}: {part.name} is due, and nothing is said to be pending")

    # --- Acks

    def acked(self, acks: Sequence[Ack], outcomes: Sequence[AckOutcome]) -> None:
        promise([o.index for o in outcomes] == list(range(len(acks))), "an outcome for each ack, in order")
        expected = self._settle_all(acks)
        for ack, outcome, wanted in zip(acks, outcomes, expected, strict=True):
            found = (outcome.success, outcome.error, outcome.noop, outcome.dead)
            promise(found == wanted, f"{ack}: {found}, not {wanted}")

    def _settle_all(self, acks: Sequence[Ack]) -> list[tuple[bool, str | None, bool, bool]]:
        """Apply the acks; for each: success, error, noop, dead."""
        results: dict[int, list[tuple[str | None, bool, bool]]] = {index: [] for index in range(len(acks))}
        work: dict[int, tuple[Queue, Partition, str, list[tuple[int, int, Ack]]]] = {}
        for index, ack in enumerate(acks):
            error, targets = self._targets(ack)
            if error is not None:
                results[index].append((error, False, False))
            for queue, part, group, seq in targets:
                key = id(part.cursors[group])
                work.setdefault(key, (queue, part, group, []))[3].append((seq, index, ack))
        for queue, part, group, items in work.values():
            for index, result in self._settle(queue, part, group, sorted(items, key=lambda i: i[:2])):
                results[index].append(result)
        return [
            (
                all(error is None for error, _, _ in found),
                next((error for error, _, _ in found if error is not None), None),
                all(noop for _, noop, _ in found),
                any(dead for _, _, dead in found),
            )
            for found in results.values()
        ]

    def _targets(self, ack: Ack) -> tuple[str | None, list[tuple[Queue, Partition, str, int]]]:
        every = [(queue, part) for queue in self.queues.values() for part in queue.partitions.values()]
        if ack.partition_id is not None and not any(part.id == ack.partition_id for _, part in every):
            return "unresolvable", []
        if ack.transaction_id is None:
            return self._targets_by_lease(ack, every)
        [(queue, part)] = [place for place in every if place[1].id == ack.partition_id]
        if ack.group not in part.cursors:
            return "unresolvable" if ack.lease_id is None else "lease_lost", []
        seq = part.resolve(ack.transaction_id)
        return ("unresolvable", []) if seq is None else self._fenced(ack, queue, part, ack.group, seq)

    def _fenced(
        self, ack: Ack, queue: Queue, part: Partition, group: str, seq: int
    ) -> tuple[str | None, list[tuple[Queue, Partition, str, int]]]:
        cursor = part.cursors[group]
        if ack.lease_id is not None:
            live = cursor.leased(self.now) and cursor.lease is not None and cursor.lease.id == ack.lease_id
            if not live or (cursor.lease is not None and seq > cursor.lease.to):
                return "lease_lost", []
        return None, [(queue, part, group, seq)]

    def _targets_by_lease(
        self, ack: Ack, every: list[tuple[Queue, Partition]]
    ) -> tuple[str | None, list[tuple[Queue, Partition, str, int]]]:
        found = []
        lost = False
        for queue, part in every:
            for group, cursor in part.cursors.items():
                lease = cursor.lease
                if lease is None or lease.id != ack.lease_id or ack.partition_id not in (None, part.id):
                    continue
                head = part.head(cursor.acked)
                assert head is not None
                seq = ack.seq or (lease.to if ack.status == "completed" else head)
                # A partition whose part of the lease has expired is lost; the others go on.
                if lease.until <= self.now or seq > lease.to:
                    lost = True
                else:
                    found.append((queue, part, group, seq))
        return ("lease_lost" if lost or not found else None), found

    def _settle(
        self, queue: Queue, part: Partition, group: str, items: list[tuple[int, int, Ack]]
    ) -> list[tuple[int, tuple[str | None, bool, bool]]]:
        cursor = part.cursors[group]
        stopped_before, cursor.stopped = cursor.stopped, False
        results = []
        clamped = released = changed = False
        not_before = None
        for seq, index, ack in items:
            error, noop, dead = None, False, False
            if clamped:
                error = None if ack.status in ("failed", "retry", "released") else "clamped"
            elif seq <= cursor.acked:
                noop = ack.status == "completed"
                error = None if noop else "committed"
            elif ack.status == "completed":
                cursor.acked, cursor.attempts = seq, 0
                changed = True
            elif ack.status in ("retry", "released"):
                released = clamped = True
            else:
                released = True
                attempts = cursor.attempts + 1
                if ack.status == "dlq":
                    self.dead.append((queue.name, part.name, seq, group, attempts, ack.error))
                    cursor.acked, cursor.attempts, dead = seq, 0, True
                elif self._charge(queue, part, group, cursor, seq, attempts, ack.error):
                    dead = queue.options.on_exhausted == "dead"
                else:
                    clamped = True
                    if not cursor.stopped:
                        not_before = self.now + queue.options.retry_delay(attempts)
            results.append((index, (error, noop, dead)))
        if cursor.lease is not None and cursor.acked >= cursor.lease.to:
            released = True
        if released:
            cursor.release()
        if released or (changed and cursor.lease is None):
            # A stopped partition goes on: what stopped it is retried, or passed.
            self._due_again(queue, part, cursor, not_before=not_before)
        else:
            cursor.stopped = stopped_before
        return results

    def renewed(self, renewals: Sequence[Renewal], answers: Sequence[Renewed]) -> None:
        for renewal, answer in zip(renewals, answers, strict=True):
            deadlines = []
            for queue in self.queues.values():
                for part in queue.partitions.values():
                    for cursor in part.cursors.values():
                        lease = cursor.lease
                        if lease is not None and lease.id == renewal.lease_id and lease.until > self.now:
                            seconds = renewal.seconds or queue.options.lease_seconds
                            lease.until = max(lease.until, self.now + timedelta(seconds=seconds))
                            deadlines.append(lease.until)
            expected = (len(deadlines), min(deadlines, default=None))
            promise((answer.partitions, answer.expires_at) == expected, f"{answer}: not {expected}")

    # --- Groups

    def subscribed(self, name: str, group: str, asked: Subscription) -> None:
        """The group is created if it is new."""
        queue = self.queues[name]
        if group in queue.groups:
            return
        begin, stored_at = queue.subscriptions.setdefault(group, (asked, self.now))
        if group == QUEUE_MODE:
            begin = Subscription("all")
        elif begin.mode == "new" and stored_at < self.now:
            begin = Subscription("from", stored_at)
        queue.groups.add(group)
        for part in queue.partitions.values():
            cursor = Cursor(acked=self._beginning(part, begin))
            part.cursors[group] = cursor
            self._due_again(queue, part, cursor)

    def _beginning(self, part: Partition, begin: Subscription) -> int:
        if begin.mode == "new":
            return part.last_seq
        if begin.mode == "from":
            assert begin.from_at is not None
            wanted = [m.seq for m in part.after(0) if m.created_at >= begin.from_at]
            return wanted[0] - 1 if wanted else part.last_seq
        return 0

    def sought(self, name: str, group: str, position: Position, partition: str | None, answer: int) -> None:
        queue = self.queues[name]
        parts = list(self._parts(name, partition))
        promise(answer == len(parts), f"seek answered {answer} for {len(parts)} cursors")
        for part in parts:
            cursor = part.cursors[group] = Cursor(acked=self._target(part, part.cursors[group], position))
            self._due_again(queue, part, cursor)

    def _target(self, part: Partition, cursor: Cursor, position: Position) -> int:
        first = part.head(0)
        start = part.last_seq if first is None else first - 1
        if position.kind == "start":
            return start
        if position.kind == "end":
            return part.last_seq
        if position.kind == "current":
            return cursor.acked
        if position.kind == "seq":
            assert position.seq is not None
            return min(max(position.seq - 1, start), part.last_seq)
        assert position.at is not None
        return max([m.seq for m in part.messages.values() if m.created_at <= position.at], default=start)

    def group_deleted(self, group: str, name: str | None, forget: bool, answer: int) -> None:
        gone = 0
        for queue in [self.queues[name]] if name is not None else self.queues.values():
            queue.groups.discard(group)
            for part in queue.partitions.values():
                gone += part.cursors.pop(group, None) is not None
            if forget:
                queue.subscriptions.pop(group, None)
        if forget:
            for place in list(self.first_polls):
                if place[0] == group and (name is None or place[1] in (None, name)):
                    del self.first_polls[place]
        promise(answer == gone, f"delete_group({group}, {name}) answered {answer}, not {gone}")

    def subscription_set(self, group: str, subscription: Subscription, name: str | None, answer: int) -> None:
        if name is not None:
            chosen = [self.queues[name]]
        else:
            chosen = [q for q in self.queues.values() if group in q.groups or group in q.subscriptions]
        promise(answer == len(chosen), f"set_subscription({group}, {name}) answered {answer}, not {len(chosen)}")
        for queue in chosen:
            queue.subscriptions[group] = (subscription, self.now)

    # --- Dead letters

    def redriven(self, gone: Sequence[DeadLetter], answer: int) -> None:
        """`gone` are the letters that were there before, matched and are not there any more."""
        promise(answer == len(gone), f"redrive answered {answer} for {len(gone)} letters")
        for letter in sorted(gone, key=lambda letter: letter.id):
            queue = self.queues[letter.message.queue]
            part = queue.partitions[letter.message.partition]
            message = Stored(part.last_seq + 1, letter.message.payload, self.now, None, None)
            self._append(queue, part, message)
            self.dead.remove(_death(letter))

    def purged(self, gone: Sequence[DeadLetter], answer: int) -> None:
        promise(answer == len(gone), f"purge answered {answer} for {len(gone)} letters")
        for letter in gone:
            self.dead.remove(_death(letter))

    # --- What must hold at any time

    def check(self, lags: dict[str, list[PartitionLag]], leases: list[LeaseInfo], letters: list[DeadLetter]) -> None:
        promise(lags.keys() == self.queues.keys(), f"queues: {sorted(lags)}, not {sorted(self.queues)}")
        for name, found in lags.items():
            queue = self.queues[name]
            expected = {(part, group) for part in queue.partitions for group in queue.groups}
            promise({(lag.partition, lag.group) for lag in found} == expected, f"{name}: cursors {expected}")
            for lag in found:
                self._check_lag(queue.partitions[lag.partition], lag)
        held = {
            (lease.lease_id, lease.queue, lease.partition, lease.group): (lease.last_seq, lease.expires_at)
            for lease in leases
        }
        promise(held == self._live_leases(), f"leases: {held}, not {self._live_leases()}")
        promise(Counter(map(_death, letters)) == Counter(self.dead), f"dead letters: {letters} not {self.dead}")

    def _check_lag(self, part: Partition, lag: PartitionLag) -> None:
        cursor = part.cursors[lag.group]
        ahead = part.after(cursor.acked)
        found = (
            lag.last_seq,
            lag.lag,
            part.head(lag.acked),
            lag.attempts,
            lag.stopped,
            lag.leased,
            lag.oldest_at,
        )
        expected = (
            part.last_seq,
            len(ahead),
            part.head(cursor.acked),
            cursor.attempts,
            cursor.stopped,
            cursor.leased(self.now),
            ahead[0].created_at if ahead else None,
        )
        promise(found == expected, f"{lag}: {found}, not {expected}")

    def _live_leases(self) -> dict[tuple[str, str, str, str], tuple[int, datetime]]:
        return {
            (cursor.lease.id, queue.name, part.name, group): (cursor.lease.to, cursor.lease.until)
            for queue in self.queues.values()
            for part in queue.partitions.values()
            for group, cursor in part.cursors.items()
            if cursor.lease is not None and cursor.leased(self.now)
        }

    def undone(self, name: str, group: str) -> dict[str, list[int]]:
        """What a group must still get from a queue, by partition."""
        found = {
            part.name: [message.seq for message in part.after(part.cursors[group].acked)]
            for part in self.queues[name].partitions.values()
        }
        return {partition: seqs for partition, seqs in found.items() if seqs}

    # --- Names

    def _queue(self, name: str) -> Queue:
        if name not in self.queues:
            namespace, task = (*name.split("."), "")[:2]
            self.queues[name] = Queue(name, QueueOptions(), namespace, task, self.now)
        return self.queues[name]

    def _partition(self, queue: Queue, name: str) -> Partition:
        if name not in queue.partitions:
            queue.partitions[name] = Partition(name, cursors={group: Cursor() for group in queue.groups})
        return queue.partitions[name]

    def _parts(self, name: str, partition: str | None) -> list[Partition]:
        return [p for p in self.queues[name].partitions.values() if partition in (None, p.name)]


def matching(letters: Sequence[DeadLetter], where: DeadLetterFilter) -> list[DeadLetter]:
    """The letters that a filter by ids or queue means."""
    return [
        letter
        for letter in letters
        if (where.ids is None or letter.id in where.ids) and where.queue in (None, letter.message.queue)
    ]


def _death(letter: DeadLetter) -> Death:
    message = letter.message
    return (message.queue, message.partition, message.seq, letter.group, letter.attempts, letter.error)
