"""When a request is sent again, and to whom."""

from __future__ import annotations

import pytest

from lockstep.client._retry import Bases, Failure, RetryPolicy, retryable
from lockstep.errors import (
    CorruptSegment,
    InvalidRequest,
    LockstepError,
    Overloaded,
    QueueFull,
    SchemaTooNew,
    Unavailable,
)

POLICY = RetryPolicy(attempts_max=3, delay_seconds_max=10)


@pytest.mark.parametrize("error", [Unavailable(), Overloaded(), LockstepError()])
def test_what_may_pass_is_retried(error: LockstepError) -> None:
    assert retryable(error)


@pytest.mark.parametrize("error", [QueueFull(), InvalidRequest(), CorruptSegment(), SchemaTooNew(), ValueError()])
def test_what_fails_the_same_way_again_is_not(error: Exception) -> None:
    assert not retryable(error)


def test_attempts_are_limited() -> None:
    failure = Failure(Unavailable())
    assert [POLICY.again(failure, attempt, repeatable=True) for attempt in (1, 2, 3)] == [True, True, False]


def test_what_may_have_been_applied_is_only_repeated_if_that_is_safe() -> None:
    failure = Failure(Unavailable(), maybe_applied=True)
    assert POLICY.again(failure, 1, repeatable=True)
    assert not POLICY.again(failure, 1, repeatable=False)
    assert POLICY.again(Failure(Unavailable()), 1, repeatable=False)


def test_delays_double_with_jitter_up_to_the_longest() -> None:
    assert [POLICY.delay_seconds(attempt, 1.0) for attempt in (1, 2, 3, 20, 2000)] == [0.1, 0.2, 0.4, 10, 10]
    assert [POLICY.delay_seconds(attempt, 0.0) for attempt in (1, 2)] == [0.05, 0.1]


def test_server_says_how_long_up_to_the_longest() -> None:
    assert POLICY.delay_seconds(1, 1.0, retry_after_seconds=3) == 3.1
    assert POLICY.delay_seconds(1, 1.0, retry_after_seconds=3600) == 10
    assert POLICY.delay_seconds(5, 1.0, retry_after_seconds=0) == 1.6


def test_server_is_not_asked_how_long_if_the_client_is_told_so() -> None:
    policy = RetryPolicy(attempts_max=3, delay_seconds_max=10, honor_retry_after=False)
    assert policy.delay_seconds(1, 1.0, retry_after_seconds=3) == 0.1


def test_what_a_busy_server_refused_may_be_left_alone() -> None:
    policy = RetryPolicy(attempts_max=3, delay_seconds_max=10, on_429=False)
    assert not policy.again(Failure(Overloaded()), 1, repeatable=True)
    assert policy.again(Failure(Unavailable()), 1, repeatable=True)


def test_server_that_works_is_kept() -> None:
    bases = Bases(["a", "b", "c"], cooldown_seconds=10)
    assert bases.choose(0) == "a"
    assert bases.failed("a", 0)
    assert bases.choose(0) == "b"
    bases.worked("b")
    assert bases.choose(100) == "b"


def test_failed_server_rests_and_then_has_its_turn() -> None:
    bases = Bases(["a", "b"], cooldown_seconds=10)
    assert bases.failed("a", 0)
    assert not bases.failed("b", 1)
    assert bases.choose(2) == "a"
    assert bases.choose(10.5) == "a"
    bases.worked("a")
    assert bases.choose(2) == "a"


def test_only_server_is_asked_again() -> None:
    bases = Bases(["a"], cooldown_seconds=10)
    assert not bases.failed("a", 0)
    assert (bases.choose(1), len(bases)) == ("a", 1)
