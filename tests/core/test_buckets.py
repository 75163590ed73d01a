"""Samples joined into longer spans of time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from lockstep.core.buckets import Buckets, SampleSpan
from lockstep.core.maintenance import Sample

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def _sample(minute: int, queue: str = "q", **fields: float) -> Sample:
    counts: dict[str, float] = {"pushed": 60, "completed": 30, "dead": 1, "pending": 5, "lag_seconds": 2.0, **fields}
    return Sample(at=NOON + timedelta(minutes=minute), queue=queue, seconds=60.0, **counts)  # type: ignore[arg-type]


def _joined(seconds: int, *samples: Sample) -> list[SampleSpan]:
    buckets = Buckets(seconds)
    for sample in samples:
        buckets.add(sample)
    return buckets.spans()


def test_samples_of_one_span_are_summed() -> None:
    [bucket] = _joined(3600, _sample(1), _sample(2, pending=9, lag_seconds=7.0), _sample(3))
    assert bucket.at == NOON
    assert (bucket.pushed, bucket.completed, bucket.dead) == (180, 90, 3)
    assert (bucket.pending, bucket.lag_seconds) == (5, 7.0)


def test_rates_are_per_second_of_the_time_that_was_sampled() -> None:
    [bucket] = _joined(3600, _sample(1), _sample(2))
    assert bucket.rate(bucket.pushed) == 1.0


def test_queues_beside_each_other_do_not_make_the_time_longer() -> None:
    [bucket] = _joined(60, _sample(0, "a"), _sample(0, "b"))
    assert (bucket.pending, bucket.rate(bucket.pushed)) == (10, 2.0)


def test_spans_without_a_sample_are_left_out() -> None:
    buckets = _joined(60, _sample(0), _sample(5))
    assert [bucket.at.minute for bucket in buckets] == [0, 5]


def test_a_span_of_no_time_has_no_rate() -> None:
    [span] = _joined(60, msgspec.structs.replace(_sample(0), seconds=0.0))
    assert span.rate(7) == 0.0
