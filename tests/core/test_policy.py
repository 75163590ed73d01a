"""A queue's options."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from lockstep.core.policy import (
    ATTEMPTS_MAX,
    OPTION_NAMES,
    RANGES,
    UNLIMITED,
    QueueOptions,
    charged,
    check_options,
    queue_options,
)
from lockstep.errors import InvalidOption


def test_defaults_are_valid() -> None:
    assert check_options(QueueOptions()) == queue_options()


@pytest.mark.parametrize("name", sorted(RANGES))
def test_ends_of_the_range_are_allowed_and_nothing_beyond(name: str) -> None:
    low, high = RANGES[name]
    for value in (low, high):
        assert getattr(queue_options(**{name: value}), name) == value
    for value in (low - 1, high + 1):
        with pytest.raises(InvalidOption, match=name):
            queue_options(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lease_seconds", "60"),
        ("lease_seconds", 1.5),
        ("lease_seconds", True),
        ("retry_limit", None),
        ("retry_backoff", float("nan")),
        ("retry_backoff", "2"),
        ("on_exhausted", "explode"),
        ("on_exhausted", ["dead"]),
        ("compression", "lz4"),
        ("encryption", 1),
        ("encryption", None),
        ("no_such_option", 1),
    ],
)
def test_bad_options_are_named(name: str, value: Any) -> None:
    with pytest.raises(InvalidOption, match=name):
        queue_options(**{name: value})


def test_struct_that_was_built_without_checks_is_checked() -> None:
    with pytest.raises(InvalidOption, match="retry_limit"):
        check_options(QueueOptions(retry_limit=-2))


def test_no_limit_never_exhausts() -> None:
    assert not queue_options(retry_limit=UNLIMITED).exhausted(ATTEMPTS_MAX)
    assert [queue_options(retry_limit=1).exhausted(attempts) for attempts in (1, 2)] == [False, True]


def test_attempts_are_counted_up_to_what_a_database_can_hold() -> None:
    assert [charged(attempts) for attempts in (0, ATTEMPTS_MAX - 1, ATTEMPTS_MAX)] == [1, ATTEMPTS_MAX, ATTEMPTS_MAX]
    assert ATTEMPTS_MAX + 1 < 2**31


def test_unknown_option_lists_the_known_ones() -> None:
    with pytest.raises(InvalidOption) as caught:
        queue_options(zzz=1)
    assert all(name in str(caught.value) for name in OPTION_NAMES)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("leese_seconds", "lease_seconds"),
        ("maxSize", "max_size"),
        ("max-size", "max_size"),
        ("leaseTime", "lease_seconds"),
        ("delayedProcessing", "delay_seconds"),
        ("encryptionEnabled", "encryption"),
    ],
)
def test_unknown_option_names_the_one_that_was_meant(given: str, meant: str) -> None:
    with pytest.raises(InvalidOption, match=f"did you mean {meant}[?]"):
        queue_options(**{given: 1})


@pytest.mark.parametrize(
    ("options", "delays_ms"),
    [
        ({"retry_delay_ms": 100}, [100, 100, 100]),
        ({"retry_delay_ms": 100, "retry_backoff": 3.0}, [100, 300, 900]),
        ({"retry_delay_ms": 100, "retry_backoff": 10.0, "retry_delay_ms_max": 500}, [100, 500, 500]),
        ({"retry_delay_ms": 100, "retry_backoff": 2.0, "retry_delay_ms_max": 50}, [100, 100, 100]),
        ({"retry_delay_ms": 0, "retry_backoff": 2.0}, [0, 0, 0]),
    ],
)
def test_retry_delay(options: dict[str, Any], delays_ms: list[int]) -> None:
    delays = [queue_options(**options).retry_delay(attempt) for attempt in (1, 2, 3)]
    assert delays == [timedelta(milliseconds=delay) for delay in delays_ms]


def test_retry_delay_stays_finite() -> None:
    options = queue_options(retry_delay_ms=1000, retry_backoff=100.0, retry_delay_ms_max=60_000)
    assert options.retry_delay(65_536) == timedelta(minutes=1)


def test_no_max_wait_is_none() -> None:
    assert queue_options().max_wait is None
    assert queue_options(max_wait_seconds=5).max_wait == timedelta(seconds=5)


def test_backoff_is_a_float_however_it_is_given() -> None:
    options = [queue_options(retry_backoff=2), check_options(QueueOptions(retry_backoff=2))]
    assert [type(one.retry_backoff) for one in options] == [float, float]
