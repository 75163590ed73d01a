"""kill -9 of servers that have queued what they accepted: others apply it, once and in order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.chaos_fleet import Fleet, Scale, Server
from support.chaos_servers import HttpServer, http_servers
from support.embedded_tools import query

# As soon as they have done anything they are busy, and stay so: every push is queued, and none is refused.
BUSY = {
    "load_push_threshold": 0.000_001,
    "load_pop_threshold": 1_000,
    "load_ack_threshold": 1_000,
    "load_late_seconds": 1_000,
    "load_stay_seconds": 3_600,
    "load_interval_seconds": 0.05,
    "operation_interval_seconds": 0.1,
}


@pytest.fixture
def fronts(folder: Path, server: Server, fleet: Fleet) -> Iterator[list[HttpServer]]:
    """Two HTTP servers, through which all clients go."""
    fleet.prepare()
    with http_servers(server.dsn, folder, **BUSY) as fronts:
        fleet.urls = tuple([front.url for front in fronts])
        yield fronts
        fleet.close()


def test_killed_processors_lose_and_double_nothing(
    fleet: Fleet, fronts: list[HttpServer], scale: Scale, server: Server
) -> None:
    fleet.launch()
    for _ in scale.kills():
        victim = random.choice(fronts)
        victim.kill()
        fleet.wait_for_progress()
        victim.start()
        fleet.wait_for_progress()
    assert fleet.finish() == []
    [(queued, failed)] = query(
        server.dsn, "select coalesce(sum(request_count), 0), coalesce(sum(failed_count), 0) from lockstep.operation"
    )
    assert queued > 0, "nothing was ever queued, so this has shown nothing"
    assert failed == 0
