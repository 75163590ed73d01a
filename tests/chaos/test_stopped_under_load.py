"""SIGSTOP at random moments, under load: of a server, of its clients and workers, of PostgreSQL. It lasts longer than a
lease, and than a server waits for PostgreSQL. Afterwards all go on as if nothing had happened, and the checker looks
at what everybody saw."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from support.chaos_fleet import Fleet, Scale, Server
from support.chaos_load import AUDIT, ENGINE_WORKERS, HTTP_WORKERS, RELAY
from support.chaos_servers import http_servers
from support.stopping import group_of, stopped

SILENT_SECONDS = 0.5
PAUSE_SECONDS_MAX = 0.1


def test_nothing_is_lost_or_doubled_when_processes_stop_at_random(
    fleet: Fleet, server: Server, folder: Path, scale: Scale
) -> None:
    fleet.prepare()
    with http_servers(server.dsn, folder, breaker_silent_seconds=SILENT_SECONDS) as fronts:
        launch(fleet, tuple(front.url for front in fronts))
        victims: list[Callable[[], list[int]]] = [
            server.pids,
            *[lambda front=front: group_of(front.process.process.pid) for front in fronts],
            *[lambda client=client: [client.pid] for client in (*fleet.producers, *fleet.consumers)],
        ]
        for pids in schedule(victims, scale):
            time.sleep(random.uniform(0, scale.delay_seconds_max))
            with stopped(pids()):
                time.sleep(random.uniform(0.2, 2))  # a lease lasts for a second
        fleet.wait_for_progress()
        assert fleet.finish() == []
        fleet.close()


def launch(fleet: Fleet, urls: tuple[str, ...]) -> None:
    fleet.add_producer("uuid", transaction_ids="uuid", urls=urls, pause_seconds_max=PAUSE_SECONDS_MAX)
    fleet.add_producer("plain", urls=urls, pause_seconds_max=PAUSE_SECONDS_MAX)
    fleet.add_consumer(AUDIT, group=AUDIT)
    fleet.add_consumer(RELAY, group=RELAY, urls=urls)
    for number in ("1", "2"):
        fleet.add_worker(f"{HTTP_WORKERS}-{number}", group=HTTP_WORKERS, whole=True, urls=urls)
    fleet.add_worker(ENGINE_WORKERS, group=ENGINE_WORKERS, whole=False)
    fleet.wait_for_progress()


def schedule(victims: list[Callable[[], list[int]]], scale: Scale) -> list[Callable[[], list[int]]]:
    """PostgreSQL, a server and a client; or, in `make soak`, everybody in turn for as long as there is time."""
    if not scale.seconds:
        return [victims[0], random.choice(victims[1:3]), random.choice(victims[3:])]
    rounds = int(scale.seconds / len(victims) / (1 + scale.delay_seconds_max / 2)) + 1
    return random.sample(victims * rounds, k=len(victims) * rounds)
