"""kill -9 of HTTP servers, and of what is around them, while their clients go on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.chaos_fleet import Fleet, Scale, Server
from support.chaos_servers import HttpServer, http_servers


@pytest.fixture
def fronts(folder: Path, server: Server, fleet: Fleet) -> Iterator[list[HttpServer]]:
    """Two HTTP servers, through which all clients go."""
    fleet.prepare()
    with http_servers(server.dsn, folder) as fronts:
        fleet.urls = tuple([front.url for front in fronts])
        yield fronts
        # Clients first: they may not see the end of their servers as a failure.
        fleet.close()


def test_killed_http_server_loses_nothing_while_the_other_goes_on(
    fleet: Fleet, fronts: list[HttpServer], scale: Scale
) -> None:
    fleet.launch()
    for _ in scale.kills():
        victim = random.choice(fronts)
        victim.kill()
        fleet.wait_for_progress()
        victim.start()
        fleet.wait_for_progress()
    assert fleet.finish() == []


def test_killed_clients_of_http_servers_lose_nothing(fleet: Fleet, fronts: list[HttpServer], scale: Scale) -> None:
    assert fronts
    fleet.launch()
    for _ in scale.kills():
        victims = [*random.sample(fleet.consumers, k=2), random.choice(fleet.producers)]
        for victim in victims:
            victim.kill()
            victim.start()
        fleet.wait_for_progress(victims)
    assert fleet.finish() == []


def test_http_servers_outlive_a_killed_postmaster(fleet: Fleet, fronts: list[HttpServer], scale: Scale) -> None:
    fleet.launch()
    for _ in scale.kills():
        fleet.server.kill_postmaster()
        fleet.wait_for_progress()
    assert fleet.finish() == []
    assert [front.process.process.poll() for front in fronts] == [None, None]
