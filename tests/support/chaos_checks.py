"""The checks that must pass once everything that was killed is back and both groups have consumed all messages."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from lockstep import Engine, Message
from lockstep.core.records import DeadLetterFilter
from support.builders import listed
from support.chaos_load import (
    JOBS,
    JOBS_DONE,
    QUEUES,
    RELAYED,
    Content,
    ProducerPlan,
    relayed_partition,
    transaction_id,
)
from support.history import AnyEvent, Lane, Push, check, check_ids, load, without_lost

PAGE = 1000

_content = msgspec.json.Decoder(Content).decode
Lanes = dict[Lane, list[Message]]


async def problems(
    engine: Engine,
    logs: Iterable[Path],
    producers: Sequence[ProducerPlan],
    *,
    doubtful: Sequence[tuple[float, float]] = (),
) -> list[str]:
    """All violations; empty if there are none. Writes of the `doubtful` periods may be lost."""
    stored = [view.message for queue in QUEUES for view in await listed(engine, queue, limit=PAGE)]
    relayed = [view.message for view in await listed(engine, RELAYED, limit=PAGE)]
    events = load(logs)
    reused = list(check_ids(events))
    for since, until in doubtful:
        events = without_lost(events, {one.id for one in (*stored, *relayed)}, since=since, until=until)
    relays = [event for event in events if _is_relayed(event)]
    inputs = [event for event in events if not _is_relayed(event)]
    lanes = _by_lane(stored)
    dead = await engine.dead_letters(DeadLetterFilter(), limit=1)
    return [
        *map(str, await engine.verify()),
        *map(str, reused),
        *map(str, check(inputs, stored, drained=await _drained(engine))),
        *map(str, check(relays, relayed)),
        *([f"{dead.total} dead letters"] if dead.total else []),
        *_check_producers(lanes, producers),
        *_check_whole_pushes(stored, producers),
        *_check_relayed(lanes, _by_lane(relayed)),
        *await _check_jobs(engine, stored),
    ]


async def _drained(engine: Engine) -> set[str]:
    """The groups that must see every message: those that log what they receive."""
    return {group.name for queue in QUEUES for group in await engine.groups(queue=queue)} - {JOBS}


def _is_relayed(event: AnyEvent) -> bool:
    return isinstance(event, Push) and event.queue == RELAYED


def _by_lane(messages: Iterable[Message]) -> Lanes:
    lanes: Lanes = defaultdict(list)
    for message in sorted(messages, key=lambda m: m.seq):
        lanes[Lane(message.queue, message.partition)].append(message)
    return lanes


def _check_producers(lanes: Lanes, producers: Sequence[ProducerPlan]) -> Iterator[str]:
    """The messages of one producer in a partition are stored once and in order; with transaction ids, all of them."""
    ids = {plan.name: plan.transaction_ids for plan in producers}
    for lane, messages in lanes.items():
        numbers: dict[str, list[int]] = defaultdict(list)
        for message in messages:
            content = _content(message.payload)
            if content.place != f"{lane.queue}/{lane.partition}":
                yield f"{lane}: {content} is in the wrong partition"
            numbers[content.by].append(content.n)
            kind = ids.get(content.by)
            if kind and message.transaction_id != transaction_id(kind, content.by, lane, content.n):
                yield f"{lane}: {content} has the transaction id {message.transaction_id}"
        for by, found in numbers.items():
            if any(later <= earlier for earlier, later in itertools.pairwise(found)):
                yield f"{lane}: the messages of {by} are not in order: {found}"
            if ids.get(by) and found != list(range(1, len(found) + 1)):
                yield f"{lane}: the messages of {by} are not complete: {found}"


def _check_whole_pushes(stored: Iterable[Message], producers: Sequence[ProducerPlan]) -> Iterator[str]:
    """A push that was not repeated is stored completely or not at all."""
    repeating = {plan.name for plan in producers if plan.transaction_ids}
    contents = [_content(message.payload) for message in stored]
    pushes = Counter((c.by, c.push, c.push_size) for c in contents if c.by not in repeating)
    for (by, push, size), count in pushes.items():
        if count != size:
            yield f"push {push} of {by} is stored with {count} of its {size} messages"


async def _check_jobs(engine: Engine, stored: Iterable[Message]) -> list[str]:
    """For a shared group: it moved each message on exactly once, in any order, and holds nothing."""
    if JOBS_DONE not in [queue.name for queue in await engine.queues()]:
        return []
    done = Counter(view.message.payload for view in await listed(engine, JOBS_DONE, limit=PAGE))
    wanted = Counter(message.payload for message in stored)
    missing, doubled = wanted - done, done - wanted
    return [f"{sum(missing.values())} jobs were lost, {sum(doubled.values())} done twice"] if missing or doubled else []


def _check_relayed(lanes: Lanes, relayed: Lanes) -> Iterator[str]:
    """Ack and push were one transaction, so every message was moved on exactly once and in order."""
    for lane, messages in lanes.items():
        moved = relayed.get(Lane(RELAYED, relayed_partition(lane)), [])
        if [message.payload for message in moved] != [message.payload for message in messages]:
            yield f"{lane}: {len(messages)} messages were relayed as {len(moved)}, or in another order"
