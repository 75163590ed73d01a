"""The engine as one caller may use it: each verb first checks that the caller has the rights on all its queues.

A verb without a rule is denied. The busy verbs are here, the rules of the others in auth/verbs.py. A request for
several queues is allowed for all of them or refused. For a caller with the right on `*`, the check is a look-up in a
set.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import cache
from typing import Any

import msgspec

from lockstep.core.messages import Batch, PushResult
from lockstep.core.operations import Order, QueuedAs
from lockstep.core.records import (
    Ack,
    AckOutcome,
    Continued,
    NextRequest,
    Popped,
    PopRequest,
    Renewal,
    Renewed,
    TransactionResult,
)
from lockstep.core.rights import Right
from lockstep.core.streams import StreamCycle, StreamCycleResult
from lockstep.engine import checks
from lockstep.engine.engine import Engine, EngineCounts
from lockstep.engine.load import LoadKind
from lockstep.errors import Forbidden, LockstepError
from lockstep.server.auth.audit import Audit, detail_of
from lockstep.server.auth.authentication import Authentication
from lockstep.server.auth.callers import Caller
from lockstep.server.auth.owners import Owners


class GuardContext:
    """What the guards of a server share."""

    def __init__(self, engine: Engine, authentication: Authentication) -> None:
        self.engine = engine
        self.authentication = authentication
        self.owners = Owners(engine)
        self.audit = Audit(engine)

    async def close(self) -> None:
        await self.audit.close()
        await self.authentication.close()


class GuardedCall:
    """A call of a verb other than the busy ones."""

    def __init__(self, guard: Guard, verb: str, arguments: dict[str, Any]) -> None:
        self.guard = guard
        self.verb = verb
        self.arguments = arguments
        self.queues: set[str] = set()
        """The queues that rights were required on."""

    async def run(self, **changed: Any) -> Any:
        return await getattr(self.guard.engine, self.verb)(**{**self.arguments, **changed})

    def need(self, rights: Right | tuple[Right, ...], queues: Collection[str]) -> None:
        """Raises Forbidden unless the caller has one of the rights on each of the queues."""
        self.queues.update(queues)
        self.guard.need(rights, queues)


Rule = Callable[[GuardedCall], Awaitable[Any]]
"""Runs the call if it is allowed, and removes from its answer what the caller may not see."""


class Guard:
    """An engine that checks rights first."""

    def __init__(self, guards: GuardContext, caller: Caller) -> None:
        self.guards = guards
        self.engine = guards.engine
        self.caller = caller

    # Rights

    def has(self, right: Right, queue: str) -> bool:
        return self.caller.rights.may(right, queue)

    def everywhere(self, right: Right) -> bool:
        return right in self.caller.rights.everywhere

    def need(self, rights: Right | tuple[Right, ...], queues: Iterable[str]) -> None:
        """Raises Forbidden unless the caller has one of the rights on each of the queues."""
        if isinstance(rights, str):
            rights = (rights,)
        if any(right in self.caller.rights.everywhere for right in rights):
            return
        if not all(any(self.caller.rights.may(right, queue) for right in rights) for queue in queues):
            # The text names no queues: a caller that guessed an id must not learn its queue.
            text = f"this needs the right {' or '.join(rights)} on all of its queues"
            raise Forbidden(f"Insufficient permissions: {text}")

    def need_everywhere(self, right: Right) -> None:
        if not self.everywhere(right):
            raise Forbidden(f"Insufficient permissions: this needs the right {right} on all queues")

    # The busy verbs

    async def push(
        self, messages: Sequence[Batch], *, queued: QueuedAs = "wait", told_in: Order | None = None
    ) -> PushResult:
        self.need("push", {batch.queue for batch in messages})
        return await self.engine.push(self._signed(messages), queued=queued, told_in=told_in)

    def _signed(self, batches: Sequence[Batch]) -> Sequence[Batch]:
        """The batches with the name of the producer, which only the server sets."""
        if self.guards.authentication.required:
            sub = self.caller.sub
            for batch in batches:
                batch.columns.producer_subs = None if sub is None else [sub] * len(batch.columns)
        return batches

    async def pop(self, requests: Sequence[PopRequest]) -> list[Popped]:
        for request in requests:
            self._need_pop(request)
        answers = await self.engine.pop(requests)
        if not self.everywhere("pop"):
            for popped in answers:
                self.guards.owners.learn(popped)
        return answers

    async def wait_pop(self, request: PopRequest, seconds: float) -> Popped:
        self._need_pop(request)
        popped = await self.engine.wait_pop(request, seconds)
        await self._hand_over(popped)
        return popped

    async def _hand_over(self, popped: Popped) -> None:
        """After a wait: the caller may have lost its rights in the meantime."""
        try:
            await self.guards.authentication.check(self.caller)
        except BaseException:
            self.engine.release(popped)
            raise
        if not self.everywhere("pop"):
            self.guards.owners.learn(popped)

    async def next(self, requests: Sequence[NextRequest]) -> list[Continued]:
        await self._need_next(requests)
        answers = await self.engine.next(requests)
        if not self.everywhere("pop"):
            for continued in answers:
                self.guards.owners.learn(continued.popped)
        return answers

    async def wait_next(self, request: NextRequest, seconds: float) -> Continued:
        await self._need_next([request])
        continued = await self.engine.wait_next(request, seconds)
        await self._hand_over(continued.popped)
        return continued

    async def _need_next(self, requests: Sequence[NextRequest]) -> None:
        for request in requests:
            self._need_pop(request.pop)
        if not self.everywhere("pop"):
            self.need("pop", await self.guards.owners.of_leases([request.lease_id for request in requests]))

    def _need_pop(self, request: PopRequest) -> None:
        if request.queue is None:
            self.need_everywhere("pop")  # for a namespace, which any queue may join
        else:
            self.need("pop", (request.queue,))

    def release(self, popped: Popped) -> None:
        self.engine.release(popped)

    async def ack(self, acks: Sequence[Ack], *, atomic: bool = False) -> list[AckOutcome]:
        return await self.engine.ack(await self._own_acks(acks), atomic=atomic)

    async def _own_acks(self, acks: Sequence[Ack]) -> Sequence[Ack]:
        """The acks, if the caller may consume all of their queues. Ids that do not exist now remain invalid for this
        call: an ack may be queued, and its partition id may be assigned before the ack is applied."""
        if self.everywhere("pop"):
            return acks
        partitions = await self.guards.owners.of_partitions(
            ack.partition_id for ack in acks if ack.partition_id is not None
        )
        leases = await self.guards.owners.of_leases(
            ack.lease_id for ack in acks if ack.lease_id is not None and ack.partition_id is None
        )
        self.need("pop", {*partitions.values(), *leases})
        return [
            ack
            if ack.partition_id is None or ack.partition_id in partitions
            else msgspec.structs.replace(ack, partition_id=checks.BIGINT_MAX)
            for ack in acks
        ]

    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        if not self.everywhere("pop"):
            self.need("pop", await self.guards.owners.of_leases([renewal.lease_id for renewal in renewals]))
        return await self.engine.renew(renewals)

    async def transaction(
        self, acks: Sequence[Ack], messages: Sequence[Batch], *, required_leases: Sequence[str] = ()
    ) -> TransactionResult:
        self.need("push", {batch.queue for batch in messages})
        if not self.everywhere("pop") and required_leases:
            self.need("pop", await self.guards.owners.of_leases(required_leases))
        own = await self._own_acks(acks)
        return await self.engine.transaction(own, self._signed(messages), required_leases=required_leases)

    async def stream_cycle(self, cycle: StreamCycle, messages: Sequence[Batch] = ()) -> StreamCycleResult:
        self.need("push", {batch.queue for batch in messages})
        if not self.everywhere("pop"):
            partitions = await self.guards.owners.of_partitions([cycle.partition_id])
            queries = await self.guards.owners.of("stream_query", [str(cycle.query_id)])
            self.need("pop", {*partitions.values(), *queries})
        return await self.engine.stream_cycle(cycle, self._signed(messages))

    # What goes with them

    async def push_applied(self, pushed: PushResult) -> PushResult:
        return await self.engine.push_applied(pushed)

    def check_load(self, kind: LoadKind) -> None:
        self.engine.check_load(kind)

    @property
    def counts(self) -> EngineCounts:
        return self.engine.counts

    async def ping(self) -> None:
        await self.engine.ping()

    async def ready(self) -> None:
        await self.engine.ready()

    # All others

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[Any]]:
        if verb.startswith("_"):
            raise AttributeError(verb)
        from lockstep.server.auth.verbs import AUDITED, RULES

        rule = RULES.get(verb)
        if rule is None:
            raise Forbidden(f"Insufficient permissions: nobody may call {verb} over HTTP")
        signature = _signature(verb)

        async def guarded(*args: Any, **kwargs: Any) -> Any:
            call = GuardedCall(self, verb, dict(signature.bind(*args, **kwargs).arguments))
            return await (self._audited(call, rule) if verb in AUDITED else rule(call))

        return guarded

    async def _audited(self, call: GuardedCall, rule: Rule) -> Any:
        async def note(outcome: Any, detail: str) -> None:
            await self.guards.audit.record(self.caller, call.verb, call.queues, outcome, detail)

        try:
            result = await rule(call)
        except Forbidden:
            await asyncio.shield(note("denied", detail_of(call.arguments)))
            raise
        except LockstepError as error:
            await asyncio.shield(note("failed", error.message))
            raise
        await asyncio.shield(note("done", detail_of(call.arguments)))
        return result


@cache
def _signature(verb: str) -> inspect.Signature:
    """The signature without `self`."""
    signature = inspect.signature(getattr(Engine, verb))
    return signature.replace(parameters=list(signature.parameters.values())[1:])
