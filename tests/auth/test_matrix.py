"""Every route and every verb, for every role and right, on a queue of one's own and on another's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import pytest
from asking import FOREIGN, OWN, Answer, Asker, Things, asking, fill
from requests_of_routes import ROUTES, VERBS, Case

from lockstep.core.rights import RIGHTS, ROLES, Rights, rules_of
from lockstep.core.wire.verbs import VERBS as ENGINE_VERBS
from lockstep.core.wire.verbs import verb_path
from lockstep.server.auth.guard import Guard
from lockstep.server.auth.verbs import AUDITED, RULES
from lockstep.server.exchange import EventStream
from lockstep.server.routes import ROUTES as SERVER_ROUTES

CALLERS: dict[str, Rights] = {
    **{role: rules_of([role]) for role in ROLES},
    **{right: Rights([f"{right} own.*"]) for right in RIGHTS},
}
CASES = {
    **{f"{method} {path}": (method, case) for (method, path), case in ROUTES.items()},
    **{f"verb {verb}": ("POST", case) for verb, case in VERBS.items()},
}


def test_every_route_that_is_not_public_is_in_the_matrix() -> None:
    asked = {(one.method, one.path) for one in SERVER_ROUTES.all if one.right is not None}
    assert asked == {*ROUTES, *(("POST", verb_path(verb)) for verb in VERBS)}


def test_every_verb_over_http_has_a_rule() -> None:
    assert {verb for verb in ENGINE_VERBS if verb not in RULES and not hasattr(Guard, verb)} == set()
    assert RULES.keys() >= AUDITED


def test_public_routes_are_these() -> None:
    public = {one.path for one in SERVER_ROUTES.all if one.right is None}
    assert public == {
        "/",
        "/assets/:file",
        "/docs",
        "/docs/api",
        "/health",
        "/metrics",
        "/metrics/prometheus",
        "/openapi.json",
        "/ready",
    }


def _expected(case: Case, rights: Rights, queue: str) -> bool:
    enters = any(right in rights.somewhere for right in case.enter) or ("browse" in case.enter)
    if not enters or case.lists:
        return enters
    where = "*" if case.everywhere else queue
    return all(
        any(right in rights.everywhere if where == "*" else rights.may(right, queue) for right in group)
        for group in case.needs
    )


@asynccontextmanager
async def world() -> AsyncIterator[tuple[Asker, dict[str, Things]]]:
    async with asking() as ask:
        yield ask, {queue: await fill(ask.engine, queue) for queue in (OWN, FOREIGN)}


async def _send(ask: Asker, name: str, method: str, case: Case, things: Things, token: str | None) -> Answer:
    target, body = case.asked(things)
    return await ask(method, target or verb_path(name.removeprefix("verb ")), body, token=token)


@pytest.mark.parametrize("name", CASES)
async def test_request_is_answered_to_those_who_may_ask(name: str) -> None:
    method, case = CASES[name]
    wrong = []
    for queue in (FOREIGN, OWN):
        # Whoever may not ask comes first, and together: their requests must have changed nothing for the others.
        denied = [caller for caller, rights in CALLERS.items() if not _expected(case, rights, queue)]
        async with world() as (ask, things):
            before = await _state(ask)
            for caller in denied:
                answer = await _send(ask, name, method, case, things[queue], await ask.key(*CALLERS[caller].rules))
                if answer.status != 403 or FOREIGN.encode() in answer.body:
                    wrong.append((caller, queue, answer.status, answer.body[:200]))
            assert await _state(ask) == before
        for callers in _together(CALLERS.keys() - denied, case, method, name):
            async with world() as (ask, things):
                for caller in callers:
                    answer = await _send(ask, name, method, case, things[queue], await ask.key(*CALLERS[caller].rules))
                    if answer.status in (401, 403) or answer.status >= 500:
                        wrong.append((caller, queue, answer.status, answer.body[:200]))
    assert wrong == []


def _together(callers: Iterable[str], case: Case, method: str, name: str) -> list[list[str]]:
    """Those who may find the same world: all, if the request changes nothing."""
    reads = case.lists or (method == "GET" and "/pop" not in name)
    return [list(callers)] if reads else [[caller] for caller in callers]


async def _state(ask: Asker) -> object:
    engine = ask.engine
    return (
        [info.options for info in await engine.queues()],
        [(info.name, info.queue, info.lag, info.leases) for info in await engine.groups()],
        [(info.messages, info.dead_letters) for info in await engine.queues()],
        [cron.enabled for cron in await engine.crons()],
    )


@pytest.mark.parametrize("name", CASES)
async def test_nobody_gets_in_without_a_key(name: str) -> None:
    method, case = CASES[name]
    async with world() as (ask, things):
        assert (await _send(ask, name, method, case, things[OWN], None)).status == 401
        assert (await _send(ask, name, method, case, things[OWN], "lsk_0123456789abcdef_none")).status == 401


LISTS = [name for name, (_, case) in CASES.items() if case.lists]


@pytest.mark.parametrize("name", LISTS)
async def test_list_has_nothing_of_others(name: str) -> None:
    method, case = CASES[name]
    async with world() as (ask, things):
        own, everything = await ask.key("browse own.*"), await ask.key("browse *")
        seen = await _send(ask, name, method, case, things[OWN], own)
        assert b"foreign" not in seen.body
        all_of_it = await _send(ask, name, method, case, things[OWN], everything)
        if isinstance(all_of_it.response, EventStream):
            return
        if FOREIGN.encode() in all_of_it.body:
            assert OWN.encode() in seen.body
