"""The settings of maintenance: their defaults and their limits."""

from __future__ import annotations

import pytest

from lockstep.config import Config, load
from lockstep.engine.maintenance.schedule import all_duties
from lockstep.errors import InvalidOption
from lockstep.storage.memory import MemoryStore

INTERVALS = {
    "retention": "retention_interval_seconds",
    "eviction": "eviction_interval_seconds",
    "idle_partitions": "idle_partitions_interval_seconds",
    "deleted_queues": "deleted_queues_interval_seconds",
    "groups": "groups_interval_seconds",
    "clock": "clock_interval_seconds",
    "operations": "operation_clean_interval_seconds",
    "samples": "samples_interval_seconds",
    "verify": "verify_interval_seconds",
    "history": "history_interval_seconds",
    "audit": "audit_interval_seconds",
}


def test_samples_are_taken_every_minute_and_idle_partitions_stay_by_default() -> None:
    config = Config()
    assert (config.samples_interval_seconds, config.idle_partition_seconds) == (60, 0)


def test_every_duty_has_an_interval_of_its_own() -> None:
    config = load({name: 10 + number for number, name in enumerate(INTERVALS.values())}, environ={})
    found = {duty.name: duty.interval_seconds for duty in all_duties(MemoryStore(), config)}
    assert found == {duty: getattr(config, name) for duty, name in INTERVALS.items()}


@pytest.mark.parametrize("name", INTERVALS.values())
def test_interval_goes_down_to_a_second(name: str) -> None:
    assert getattr(load({name: 1}, environ={}), name) == 1
    with pytest.raises(InvalidOption, match=name):
        load({name: 0.9}, environ={})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("idle_partition_seconds", -1),
        ("history_seconds_max", 59),
        ("retention_batch_messages_max", 0),
        ("idle_partitions_batch_max", 0),
        ("slice_messages_max", 0),
        ("slice_partitions_max", 0),
        ("slices_seconds_max", -1),
        ("verify_partitions_max", 0),
        ("duty_pass_seconds_max", 0),
        ("duty_hold_seconds", 0.5),
        ("duty_stop_seconds_max", 0),
    ],
)
def test_value_out_of_range_is_refused(name: str, value: float) -> None:
    with pytest.raises(InvalidOption, match=name):
        load({name: value}, environ={})
