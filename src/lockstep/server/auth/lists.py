"""Lists and sums for a caller that may not browse everything."""

from __future__ import annotations

from typing import Any

import msgspec

from lockstep.core.buckets import Buckets
from lockstep.core.overview import LabelKind, Overview, label_info, oldest, total
from lockstep.core.records import DeadLetter, DeadLetterFilter, DeadLetterPage, QueueInfo
from lockstep.errors import Forbidden, InvalidRequest
from lockstep.server.auth.guard import GuardedCall, Rule
from lockstep.server.auth.rules import PAGE, sees, sees_all, visible

_QUEUES_MAX = 200
"""Maximum number of queues whose dead letters are gathered for a caller that may not browse all."""
_TRACES_MAX = 10_000


async def visible_queues(call: GuardedCall, **labels: Any) -> list[QueueInfo]:
    visible: list[QueueInfo] = []
    after = None
    while True:
        page = await call.guard.engine.queues(after=after, limit=PAGE, **labels)
        visible += [info for info in page if call.guard.has("browse", info.name)]
        if len(page) < PAGE:
            return visible
        after = page[-1].name


def labels(kind: LabelKind) -> Rule:
    async def rule(call: GuardedCall) -> Any:
        if call.guard.everywhere("browse"):
            return await call.run()
        grouped: dict[str, list[QueueInfo]] = {}
        for info in await visible_queues(call):
            grouped.setdefault(getattr(info, kind), []).append(info)
        after, limit = call.arguments.get("after"), call.arguments.get("limit", PAGE)
        names = [name for name in sorted(grouped) if after is None or name > after]
        return [label_info(name, grouped[name]) for name in names[:limit]]

    return rule


async def overview(call: GuardedCall) -> Any:
    if call.guard.everywhere("browse"):
        return await call.run()
    infos = await visible_queues(call)
    messages, pending = total([one.messages for one in infos]), total([one.pending for one in infos])
    return Overview(
        queues=len(infos),
        partitions=total([one.partitions for one in infos]),
        namespaces=len({one.namespace for one in infos}),
        tasks=len({one.task for one in infos}),
        messages=messages,
        pending=pending,
        processing=total([one.processing for one in infos]),
        completed=None if messages is None or pending is None else messages - pending,
        dead_letters=total([one.dead_letters for one in infos]),
        cursors_with_lag=None,
        lag_seconds=None,
        lag_messages=None,
        figures_at=oldest(infos),
    )


async def sample_spans(call: GuardedCall) -> Any:
    if sees_all(call):
        return await call.run()
    given = call.arguments
    infos = await visible_queues(call, namespace=given.get("namespace"), task=given.get("task"))
    wanted = {info.name for info in infos}
    buckets = Buckets(given["seconds"])
    last = None
    while True:
        page = await call.guard.engine.samples(from_at=given["from_at"], to_at=given["to_at"], after=last, limit=PAGE)
        for sample in page:
            if sample.queue in wanted:
                buckets.add(sample)
        if len(page) < PAGE:
            return buckets.spans()
        last = page[-1]


async def dead_letters(call: GuardedCall) -> Any:
    where: DeadLetterFilter = call.arguments["where"]
    if sees_all(call):
        return await call.run()
    limit, offset = call.arguments.get("limit", 100), call.arguments.get("offset", 0)
    if limit + offset > PAGE:
        raise InvalidRequest(f"limit and offset together are at most {PAGE} without a queue")
    letters: list[DeadLetter] = []
    sum_of_all = 0
    for queue in await _queues_with_dead_letters(call):
        of_queue = msgspec.structs.replace(where, queue=queue)
        page = await call.run(where=of_queue, limit=limit + offset, offset=0)
        letters += page.items
        sum_of_all += page.total
    letters.sort(key=lambda letter: (letter.failed_at, letter.id), reverse=True)
    return DeadLetterPage(items=letters[offset : offset + limit], total=sum_of_all)


async def _queues_with_dead_letters(call: GuardedCall) -> list[str]:
    infos = await visible_queues(call)
    # A figure counted some time ago may be too small now.
    queues = [info.name for info in infos if info.dead_letters != 0 or info.figures_at is not None]
    if len(queues) > _QUEUES_MAX:
        raise InvalidRequest(f"dead letters of more than {_QUEUES_MAX} queues are listed queue by queue")
    return queues


async def leases(call: GuardedCall) -> Any:
    if sees_all(call):
        return await call.run()
    limit = call.arguments.get("limit", PAGE)
    leases = await call.run(limit=max(limit, PAGE))
    return visible(call, leases, lambda lease: lease.queue)[:limit]


async def traces_by_name(call: GuardedCall) -> Any:
    if call.guard.everywhere("browse"):
        return await call.run()
    limit, offset = call.arguments.get("limit", 100), call.arguments.get("offset", 0)
    seen: list[Any] = []
    for start in range(0, _TRACES_MAX, PAGE):
        page = await call.run(limit=PAGE, offset=start)
        seen += [one for one in page.items if call.guard.has("browse", one.event.queue)]
        if start + len(page.items) >= page.total or not page.items:
            return msgspec.structs.replace(page, items=seen[offset : offset + limit], total=len(seen))
    raise Forbidden(f"Insufficient permissions: {_TRACES_MAX} events have this name; to list them, browse all queues")


async def trace_names(call: GuardedCall) -> Any:
    if call.guard.everywhere("browse"):
        return await call.run()
    wanted = call.arguments.get("queues")
    seen = [info.name for info in await visible_queues(call) if wanted is None or info.name in wanted]
    return await call.run(queues=seen)


async def job_runs(call: GuardedCall) -> Any:
    """The runs for which the caller may browse every queue."""
    runs = await call.run()
    if call.guard.everywhere("browse"):
        return runs
    return [run for run in runs if run.queues and all(call.guard.has("browse", queue) for queue in run.queues)]


async def pipeline_steps(call: GuardedCall) -> Any:
    steps = await call.run()
    if call.guard.everywhere("browse"):
        return steps
    return [step for step in steps if sees(call, [*step.sources, *step.sinks])]
