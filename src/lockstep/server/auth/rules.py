"""The kinds of rules: for a named queue, for all queues, or for a list, of which the caller sees its part."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from lockstep.core import refusals
from lockstep.core.rights import Right
from lockstep.server.auth.guard import GuardedCall, Rule

PAGE = 1_000
Rights = Right | tuple[Right, ...]


def free() -> Rule:
    """A rule for verbs that concern no queue."""

    async def rule(call: GuardedCall) -> Any:
        return await call.run()

    return rule


def everywhere(right: Right) -> Rule:
    """A rule for verbs that concern all queues, or the server."""

    async def rule(call: GuardedCall) -> Any:
        call.guard.need_everywhere(right)
        return await call.run()

    return rule


def on_queue(*rights: Right) -> Rule:
    """A rule for the queue in the argument `queue`; without it, for all queues."""

    async def rule(call: GuardedCall) -> Any:
        _need_named(call, rights, call.arguments.get("queue"))
        return await call.run()

    return rule


def _need_named(call: GuardedCall, rights: tuple[Right, ...], queue: str | None) -> None:
    if queue is not None:
        call.need(rights, [queue])
    elif not any(call.guard.everywhere(right) for right in rights):
        call.guard.need_everywhere(rights[0])


def listed(queue_of: Callable[[Any], str | None]) -> Rule:
    """A whole list: only items of queues that the caller may browse."""

    async def rule(call: GuardedCall) -> Any:
        if sees_all(call):
            return await call.run()
        return visible(call, await call.run(), queue_of)

    return rule


def paged(queue_of: Callable[[Any], str], after: Callable[[Any], Any]) -> Rule:
    """A page after an item, filled as if the list contained only what the caller may browse."""

    async def rule(call: GuardedCall) -> Any:
        if sees_all(call):
            return await call.run()
        limit = call.arguments.get("limit", 100)
        found: list[Any] = []
        changed: dict[str, Any] = {"limit": max(limit, PAGE) if isinstance(limit, int) and limit > 0 else limit}
        while True:
            page = await call.run(**changed)
            found += visible(call, page, queue_of)
            if len(page) < changed["limit"] or len(found) >= limit:
                return found[:limit]
            changed["after"] = after(page[-1])

    return rule


def by_cursor(queues_of: Callable[[Any], Iterable[str]]) -> Rule:
    """A page with a cursor: it may be short, even empty, and still have a next page."""

    async def rule(call: GuardedCall) -> Any:
        page = await call.run()
        if sees_all(call):
            return page
        return msgspec.structs.replace(page, items=[one for one in page.items if sees(call, queues_of(one))])

    return rule


def sees_all(call: GuardedCall) -> bool:
    """Whether the caller may browse the whole answer: everything, or the queue that the call names. Raises Forbidden if
    the call names a queue that the caller may not browse."""
    if call.guard.everywhere("browse"):
        return True
    where = call.arguments.get("where")
    queue = call.arguments.get("queue") or getattr(where, "queue", None)
    if queue is None:
        return False
    call.need("browse", [queue])
    return True


def sees(call: GuardedCall, queues: Iterable[str | None]) -> bool:
    queues = list(queues)
    return bool(queues) and all(queue is not None and call.guard.has("browse", queue) for queue in queues)


def visible(call: GuardedCall, items: Iterable[Any], queue_of: Callable[[Any], str | None]) -> list[Any]:
    return [item for item in items if sees(call, [queue_of(item)])]


def found(rights: Rights, queue_of: Callable[[Any], str]) -> Rule:
    """A single item that is read by its id. Its queue is known only once it is found; reading changes nothing."""

    async def rule(call: GuardedCall) -> Any:
        result = await call.run()
        call.need(rights, [queue_of(result)])
        return result

    return rule


def in_partition(rights: Rights, of: Callable[[Any], int] = lambda arguments: arguments["partition_id"]) -> Rule:
    """A rule for the queue of a partition id. An id that does not exist now remains invalid for this call."""

    async def rule(call: GuardedCall) -> Any:
        partition_id = of(call.arguments)
        owners = await call.guard.guards.owners.of_partitions([partition_id])
        if not owners and not all(map(call.guard.everywhere, _tuple(rights))):
            raise refusals.no_partition_id(partition_id)
        call.need(rights, list(owners.values()))
        return await call.run()

    return rule


def _tuple(rights: Rights) -> tuple[Right, ...]:
    return (rights,) if isinstance(rights, str) else rights


def of_queue(item: Any) -> str:
    queue: str = item.queue
    return queue


def of_message(item: Any) -> str:
    queue: str = item.message.queue
    return queue
