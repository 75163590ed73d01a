"""kill -9 of the embedded PostgreSQL, and of the process that owns it, under load."""

from __future__ import annotations

from support.chaos_fleet import Fleet, Scale


def test_killed_postmaster_loses_nothing_acknowledged(fleet: Fleet, scale: Scale) -> None:
    fleet.launch()
    for _ in scale.kills():
        fleet.server.kill_postmaster()
        fleet.wait_for_progress()
    assert fleet.finish() == []


def test_killed_processes_of_postgres_lose_nothing_acknowledged(fleet: Fleet, scale: Scale) -> None:
    fleet.launch()
    for _ in scale.kills():
        fleet.server.kill_everything()
        fleet.wait_for_progress()
    assert fleet.finish() == []


def test_new_owner_of_the_data_directory_has_all_that_was_acknowledged(fleet: Fleet, scale: Scale) -> None:
    fleet.launch()
    for number in scale.kills():
        fleet.server.kill_owner(with_server=number % 2 == 1)
        fleet.wait_for_progress()
    assert fleet.finish() == []
