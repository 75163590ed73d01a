"""Polls that name ever new groups do not fill a store."""

from __future__ import annotations

import pytest

from lockstep import open_engine
from lockstep.core.names import QUEUE_MODE
from lockstep.core.records import PopRequest, Subscription
from lockstep.errors import TooManyGroups


@pytest.mark.parametrize("kind", ["memory", "postgres"])
async def test_queue_has_groups_up_to_a_limit(kind: str, request: pytest.FixtureRequest) -> None:
    dsn = "memory://" if kind == "memory" else request.getfixturevalue("database_dsn")
    async with open_engine(dsn, queue_groups_max=2) as engine:
        await engine.configure("q")
        await engine.subscribe("q", "a", Subscription())
        await engine.pop([PopRequest(queue="q", group="b")])
        with pytest.raises(TooManyGroups, match="queue_groups_max"):
            await engine.pop([PopRequest(queue="q", group="c")])
        with pytest.raises(TooManyGroups):
            await engine.subscribe("q", "c", Subscription())
        assert [group.name for group in await engine.groups()] == ["a", "b"]
        # Those that are there go on, and so do plain consumers and other queues.
        await engine.pop([PopRequest(queue="q", group="a"), PopRequest(queue="q", group=QUEUE_MODE)])
        await engine.configure("other")
        await engine.pop([PopRequest(queue="other", group="c")])
        await engine.delete_group("a")
        await engine.subscribe("q", "c", Subscription())
    if kind == "postgres":
        async with open_engine(dsn, queue_groups_max=2) as another:  # one that has not seen them yet
            await another.pop([PopRequest(queue="q", group="b")])
