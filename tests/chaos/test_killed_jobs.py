"""kill -9 around a shared group: its consumers, and the database with the leases that are not on disk yet."""

from __future__ import annotations

import random

from support.chaos_fleet import Fleet, Scale


def test_killed_consumers_of_a_shared_group_lose_and_repeat_nothing(fleet: Fleet, scale: Scale) -> None:
    fleet.launch_jobs()
    for _ in scale.kills():
        victims = random.sample(fleet.consumers, k=2)
        for victim in victims:
            victim.kill()
            victim.start()
        fleet.wait_for_progress(victims)
    assert fleet.finish() == []


def test_killed_postgres_loses_and_repeats_nothing_of_a_shared_group(fleet: Fleet, scale: Scale) -> None:
    fleet.launch_jobs()
    for _ in scale.kills():
        fleet.server.kill_everything()
        fleet.wait_for_progress()
    assert fleet.finish() == []
