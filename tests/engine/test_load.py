"""How busy a server is, and what it decides because of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from lockstep.config import Config, load
from lockstep.core.operations import OperationCounts, OperationDepth
from lockstep.core.statistics import StoreCounts
from lockstep.engine.load import Decision, Lateness, Load, LoadKind, Situation, Thresholds, decide, load_of, pool_load
from lockstep.engine.pace import Crowd
from lockstep.errors import InvalidOption, Overloaded

EXECUTE, QUEUE, SHED, REJECT = Decision.EXECUTE, Decision.QUEUE, Decision.SHED, Decision.REJECT
PUSH = Thresholds(0.7, 10_000, leave_ratio=0.8, stay_seconds=2, sheds=True)
POP = Thresholds(0.95, 0, leave_ratio=0.8, stay_seconds=2)


@pytest.mark.parametrize(
    ("before", "seconds", "situation", "answer"),
    [
        (EXECUTE, 60, Situation(load=0.69), EXECUTE),
        (EXECUTE, 60, Situation(load=0.7), QUEUE),
        (EXECUTE, 0, Situation(load=5.0), QUEUE),
        (EXECUTE, 60, Situation(load=0.7, depth=1.0), REJECT),
        # An idle server does what it can, however much lies there that cannot be applied.
        (EXECUTE, 60, Situation(load=0.1, depth=1.0), EXECUTE),
        (EXECUTE, 60, Situation(load=0.1, draining=True), EXECUTE),
        # What was entered is left well below the threshold, after a while, and once what was queued is applied.
        (QUEUE, 60, Situation(load=0.6), QUEUE),
        (QUEUE, 60, Situation(load=0.55), EXECUTE),
        (QUEUE, 1.9, Situation(load=0.0), QUEUE),
        (QUEUE, 2.0, Situation(load=0.0), EXECUTE),
        (QUEUE, 60, Situation(load=0.0, draining=True), QUEUE),
        (QUEUE, 60, Situation(load=0.0, draining=True, depth=1.0), REJECT),
        (QUEUE, 60, Situation(load=0.9, depth=0.99), QUEUE),
        (QUEUE, 0, Situation(load=0.9, depth=1.0), REJECT),
        (REJECT, 60, Situation(load=0.9, depth=0.8), REJECT),
        (REJECT, 60, Situation(load=0.9, depth=0.79), QUEUE),
        # What empties fast is refused for a while, so that the answer does not flap; unless it would run dry.
        (REJECT, 1.9, Situation(load=0.9, depth=0.79), REJECT),
        (REJECT, 1.9, Situation(load=0.9, depth=0.21), REJECT),
        (REJECT, 0, Situation(load=0.9, depth=0.19), QUEUE),
        (REJECT, 60, Situation(load=0.0, depth=0.79), EXECUTE),
        # A process that is short of time itself does not queue, unless what it has queued is not applied yet.
        (EXECUTE, 60, Situation(load=0.7, late=True), SHED),
        (SHED, 0, Situation(load=0.1, late=True), SHED),
        (SHED, 60, Situation(load=0.1, late=True), EXECUTE),
        (SHED, 60, Situation(load=0.1, late=True, refused=True), SHED),
        (QUEUE, 60, Situation(load=0.1, refused=True), EXECUTE),
        (SHED, 0, Situation(load=0.9), QUEUE),
        (QUEUE, 0, Situation(load=0.9, late=True, draining=True), QUEUE),
        (QUEUE, 0, Situation(load=0.9, late=True), SHED),
        (EXECUTE, 60, Situation(load=0.1, late=True), EXECUTE),
    ],
)
def test_decision_about_pushes(before: Decision, seconds: float, situation: Situation, answer: Decision) -> None:
    assert decide(before, seconds, situation, PUSH) is answer


@pytest.mark.parametrize(
    ("before", "seconds", "load", "answer"),
    [
        (EXECUTE, 60, 0.94, EXECUTE),
        (EXECUTE, 60, 0.95, REJECT),
        (REJECT, 60, 0.8, REJECT),
        (REJECT, 1, 0.1, REJECT),
        (REJECT, 3, 0.1, EXECUTE),
    ],
)
def test_decision_about_pops_which_are_never_queued(
    before: Decision, seconds: float, load: float, answer: Decision
) -> None:
    assert decide(before, seconds, Situation(load=load), POP) is answer


CONFIG = load(
    {
        "load_wait_seconds_max": 2.0,
        "load_requests_max": 100,
        "load_bytes_max": 1000,
        "load_latency_seconds_max": 4.0,
    },
    environ={},
)


@pytest.mark.parametrize(
    ("crowd", "pool", "expected"),
    [
        (Crowd(), 0.0, 0.0),
        (Crowd(oldest_seconds=1.0), 0.0, 0.5),
        (Crowd(requests=25), 0.0, 0.25),
        (Crowd(bytes=3000), 0.0, 3.0),
        (Crowd(fastest_seconds=3.0), 0.0, 0.75),
        (Crowd(requests=10), 0.4, 0.4),
        (Crowd(requests=10, oldest_seconds=1.5), 0.4, 0.75),
    ],
)
def test_load_is_the_worst_of_its_parts(crowd: Crowd, pool: float, expected: float) -> None:
    assert load_of(crowd, pool, CONFIG) == pytest.approx(expected)


def test_time_that_everything_waits_for_the_process_counts() -> None:
    assert load_of(Crowd(oldest_seconds=0.5), 0.0, CONFIG, late_seconds=0.5) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("store", "expected"),
    [
        (StoreCounts(), 0.0),
        (StoreCounts(connections_max=10, connections_open=10), 0.5),
        (StoreCounts(connections_max=10, connections_open=10, connections_idle=6), 0.2),
        (StoreCounts(connections_max=10, connections_open=10, connection_waiters=10), 1.0),
    ],
)
def test_load_of_connections(store: StoreCounts, expected: float) -> None:
    assert pool_load(store) == pytest.approx(expected)


def test_calls_that_happen_to_meet_at_the_pool_are_no_load() -> None:
    room = Room()
    crowded = StoreCounts(connections_max=10, connections_open=10, connection_waiters=50)
    room.load.sample(crowded)
    assert room.load.pop is EXECUTE
    room.load.sample(crowded)
    assert room.load.pop is REJECT


class Room:
    """What a load looks at, set by the test."""

    def __init__(self, **settings: Any) -> None:
        self.now = 100.0
        self.crowd = Crowd()
        self.time_for = self.queues_empty_for = 1_000_000
        self.stalled_seconds = 0.0
        self.refused: list[tuple[str, float]] = []
        config = load({"operation_push_depth_max": 10, "load_stay_seconds": 2, **settings}, environ={})
        self.load = Load(config, self, clock=lambda: self.now)
        self.load.manage()
        self.turns = Turns()
        self.lateness = Lateness(self.load, StoreCounts)

    def crowds(self) -> dict[LoadKind, Crowd]:
        return {"push": self.crowd, "ack": Crowd(), "pop": self.crowd}

    def has_time(self, coming: int = 0) -> bool:
        return coming < self.time_for

    def queueing(self, coming: int = 0) -> int:
        return 0 if coming < self.queues_empty_for else 10

    def queueing_seconds(self, kind: LoadKind) -> float:  # noqa: ARG002
        return self.stalled_seconds

    def refuse_waiting(self, kind: LoadKind, seconds: float, refusal: Callable[[], Exception]) -> None:  # noqa: ARG002
        self.refused.append((kind, seconds))

    def sample(self, *, after: float = 1.0, waited: float = 0.0, looks: int = 2) -> Decision:
        self.crowd = Crowd(oldest_seconds=waited)
        for _ in range(looks):
            self.now += after / looks
            self.load.sample(StoreCounts())
        return self.load.push

    def take_turns(self, seconds: float, *, each: float, waited: float = 0.0) -> set[tuple[Decision, Decision]]:
        """Let the event loop do turns of this length for so long, with requests that wait so long for their call;
        returns what pushes and pops were answered with."""
        self.crowd = Crowd(oldest_seconds=waited)
        answers = set()
        if self.turns.probe is None:
            self.lateness._ask(self.turns)  # type: ignore[arg-type]
        end = self.turns.now + seconds
        while self.turns.now < end:
            self.now += each
            self.turns.take(each)
            answers.add((self.load.push, self.load.pop))
        return answers


class Turns:
    """An event loop of which a test says how long its turns are."""

    def __init__(self) -> None:
        self.now = 0.0
        self.probe: tuple[float, Any, Any] | None = None

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Any, argument: Any) -> None:
        self.probe = (when, call, argument)

    def take(self, seconds: float) -> None:
        self.now += seconds
        assert self.probe is not None
        when, call, argument = self.probe
        if self.now >= when:
            call(argument)


def test_push_is_queued_while_it_is_busy_and_executed_again_after_a_rest(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="lockstep.engine.load")
    room = Room()
    assert room.sample() is EXECUTE
    assert room.sample(waited=1.6) is QUEUE
    assert room.sample(waited=1.6) is QUEUE
    assert room.sample(after=2.0) is EXECUTE
    assert [(r.kind, r.answer, r.before) for r in caplog.records] == [  # type: ignore[attr-defined]
        ("push", "queue", "execute"),
        ("push", "execute", "queue"),
    ]


def test_changes_at_a_limit_are_summed_up_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """The operation queue fills and empties several times a second."""
    room = Room()
    caplog.set_level(logging.INFO, logger="lockstep.engine.load")
    room.crowd = Crowd(oldest_seconds=2)
    for _ in range(80):
        room.now += 0.1
        room.load.sample(StoreCounts())
        for depth in (10, 0):
            room.load.begin_count()
            room.load.note_counts(OperationCounts(pending=[OperationDepth(kind="push", operations=depth)]))
            room.load._decide("push")
    state = room.load.states["push"]
    logged = [record for record in caplog.records if record.kind == "push"]  # type: ignore[attr-defined]
    assert state.changes > 100
    assert 2 <= len(logged) <= 5, "one in two seconds"
    assert sum(record.changes for record in logged) > 50  # type: ignore[attr-defined]


def test_log_says_in_the_end_what_the_answer_is(caplog: pytest.LogCaptureFixture) -> None:
    room = Room(load_stay_seconds=2)
    caplog.set_level(logging.INFO, logger="lockstep.engine.load")
    room.load.note_crowd("push")
    room.now += 0.5
    room.sample(waited=3, after=0.2)
    assert room.load.push is QUEUE
    for _ in range(10):
        room.sample(after=1)
    answers = [r.answer for r in caplog.records if r.kind == "push"]  # type: ignore[attr-defined]
    assert (answers[0], answers[-1]) == ("shed", "execute")


def test_store_that_does_not_take_what_is_to_be_queued_is_no_place_for_more() -> None:
    room = Room()
    assert room.sample(waited=2) is QUEUE
    assert not room.load.executes_push()
    room.stalled_seconds = 1.5
    with pytest.raises(Overloaded):
        room.load.executes_push()
    assert not room.load.has_room("ack")


def test_what_has_waited_too_long_is_refused_by_a_server_that_manages_its_load() -> None:
    room = Room(load_refuse_seconds=3)
    room.sample(looks=1)
    assert room.refused == [("push", 3), ("ack", 3), ("pop", 3)]
    room.load.managed = False
    room.sample(looks=1)
    assert len(room.refused) == 3


def test_pops_are_refused_no_longer_than_the_server_is_busy() -> None:
    """A pop cannot be queued: whoever is refused after the load is gone has nothing from it."""
    room = Room(load_stay_seconds=60)
    room.load.note_late(2, lasting=2)
    assert room.load.pop is REJECT
    room.load.note_late(0, lasting=0)
    room.sample()
    assert room.load.pop is EXECUTE


def test_crowd_is_answered_at_once() -> None:
    room = Room()
    room.load.note_crowd("push")
    assert (room.load.push, room.load.ack, room.load.pop) == (SHED, EXECUTE, EXECUTE)
    assert room.sample(waited=2) is QUEUE, "the process has time, so the store is slow"


def test_full_operation_queue_refuses_at_once_and_takes_again_when_it_has_room() -> None:
    room = Room()
    room.sample(waited=2)
    for _ in range(9):
        room.load.note_queued("push", 1)
    assert room.load.has_room("push")
    assert room.load.push is QUEUE
    room.load.note_queued("push", 1)
    assert room.load.push is REJECT
    assert not room.load.has_room("push")
    with pytest.raises(Overloaded) as refused:
        room.load.check("push")
    assert refused.value.details["retry_after_seconds"] == 1
    for depth, answer in ((9, REJECT), (8, REJECT), (7, QUEUE)):
        room.load.begin_count()
        room.load.note_counts(OperationCounts(pending=[OperationDepth(kind="push", operations=depth)]))
        assert room.sample(waited=2) is answer


def test_what_is_queued_while_operations_are_counted_is_not_forgotten() -> None:
    room = Room()
    room.sample(waited=2)
    for _ in range(5):
        room.load.note_queued("push", 1)
    room.load.begin_count()
    for _ in range(5):
        room.load.note_queued("push", 1)
    room.load.note_counts(OperationCounts(pending=[OperationDepth(kind="push", operations=5)]))
    assert not room.load.has_room("push")


def test_operation_queue_is_full_of_bytes_too() -> None:
    room = Room(operation_bytes_max=1000)
    room.sample(waited=2)
    room.load.note_queued("push", 1000)
    assert room.load.push is REJECT


def test_retry_after_follows_what_is_to_be_applied() -> None:
    room = Room(operation_push_depth_max=1000)
    room.sample(waited=2)
    room.load.note_counts(OperationCounts(pending=[OperationDepth(kind="push", operations=1000)]))
    room.load.note_applied(100, seconds=2)
    assert room.load.wait_seconds(100) == 2
    assert room.load.refusal("push").details["retry_after_seconds"] == 4
    room.load.drain_rate = 0.1
    assert room.load.refusal("push").details["retry_after_seconds"] == 30


def test_unmanaged_load_executes_everything() -> None:
    room = Room(load_management=False)
    assert room.sample(waited=60) is EXECUTE
    room.load.note_crowd("push")
    assert room.load.push is EXECUTE


def test_thresholds_are_those_of_the_design() -> None:
    config = Config()
    assert (config.load_push_threshold, config.load_ack_threshold, config.load_pop_threshold) == (0.7, 0.8, 0.95)
    assert (config.operation_push_depth_max, config.operation_ack_depth_max) == (10_000, 50_000)
    assert config.operation_keep_seconds == 3600


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("load_push_threshold", 0),
        ("load_leave_ratio", 1.5),
        ("load_stay_seconds", -1),
        ("operation_push_depth_max", 0),
        ("operation_retries_max", -1),
        ("operation_call_messages_max", 65_537),
    ],
)
def test_settings_out_of_range(name: str, value: object) -> None:
    with pytest.raises(InvalidOption, match=name):
        load({name: value}, environ={})


def test_process_that_is_short_of_time_executes_what_it_can_and_refuses_the_rest() -> None:
    room = Room()
    for _ in range(20):
        room.load.note_late(1.6, lasting=1.6)
    assert room.sample() is SHED
    assert room.load.executes_push()
    room.load.check("push")
    room.time_for = 0
    with pytest.raises(Overloaded):
        room.load.executes_push()
    with pytest.raises(Overloaded):
        room.load.check("push")


def test_server_sheds_as_long_as_it_has_to_refuse() -> None:
    room = Room()
    room.time_for = 0
    room.load.note_crowd("push")
    for _ in range(5):
        room.load.note_late(1, lasting=0)
        with pytest.raises(Overloaded):
            room.load.check("push")
        assert room.sample(looks=1) is SHED
    room.load.note_late(1, lasting=0)
    assert room.sample(looks=1) is EXECUTE


@pytest.mark.parametrize("answer", [SHED, QUEUE])
def test_pushes_that_begin_in_one_turn_are_let_in_while_there_is_room_for_all_of_them(answer: Decision) -> None:
    room = Room(load_busy_messages_max=10)
    room.time_for = room.queues_empty_for = 3
    room.load.let_in()
    assert room.load.coming == 0, "nobody counts while there is time"
    room.load.push = answer
    for _ in range(2):
        for _ in range(3):
            room.load.let_in()
        with pytest.raises(Overloaded):
            room.load.let_in()
        room.load.note_late(0, lasting=0)  # the next turn


def test_process_that_sheds_queues_when_it_has_time_again() -> None:
    room = Room()
    room.load.note_crowd("push")
    for late, answer in ((0.05, SHED), (0.02, SHED), (0.001, QUEUE), (0.02, QUEUE), (0.05, SHED)):
        for _ in range(100):
            room.load.note_late(late, lasting=0)
        assert room.sample(waited=1.5) is answer


def test_busy_server_queues_only_so_many_at_a_time() -> None:
    room = Room(load_busy_messages_max=10)
    assert room.sample(waited=2) is QUEUE
    assert not room.load.executes_push()
    room.queues_empty_for = 0
    with pytest.raises(Overloaded):
        room.load.executes_push()


def test_being_late_for_a_while_is_load_at_once() -> None:
    room = Room()
    room.load.note_late(5, lasting=1.39)
    assert room.load.push is EXECUTE
    room.load.note_late(1.61, lasting=1.61)
    assert (room.load.push, room.load.ack, room.load.pop) == (SHED, QUEUE, EXECUTE)


def test_load_counts_if_it_lasts() -> None:
    room = Room()
    assert room.sample(waited=60, looks=1) is EXECUTE
    assert room.sample(waited=0, looks=1) is EXECUTE
    assert room.sample(waited=60, looks=1) is EXECUTE
    assert room.sample(waited=60, looks=1) is QUEUE


@pytest.mark.parametrize(("each", "waited"), [(0.05, 0.1), (0.3, 0.6), (0.5, 0.9)])
def test_server_that_does_all_it_can_executes_everything(each: float, waited: float) -> None:
    """Large batches make long turns, and requests wait for those before them; it is as fast as it can be."""
    room = Room()
    assert room.take_turns(60, each=each, waited=waited) == {(EXECUTE, EXECUTE)}


def test_a_few_turns_that_are_very_long_are_no_load() -> None:
    room = Room()
    for _ in range(10):
        assert room.take_turns(6, each=2.0) == {(EXECUTE, EXECUTE)}
        assert room.take_turns(2, each=0.01) == {(EXECUTE, EXECUTE)}


def test_waits_that_grow_over_seconds_are_an_overload() -> None:
    room = Room()
    for waited in (0.5, 1.0, 1.3):
        assert room.take_turns(1, each=0.02, waited=waited) == {(EXECUTE, EXECUTE)}
    room.take_turns(2, each=0.02, waited=1.7)
    assert (room.load.push, room.load.pop) == (QUEUE, EXECUTE)
    room.take_turns(2.2, each=0.02, waited=3.0)
    assert (room.load.push, room.load.pop) == (QUEUE, REJECT)


def test_process_whose_turns_stay_long_for_seconds_sheds() -> None:
    room = Room()
    room.take_turns(20, each=2.5)
    assert (room.load.push, room.load.pop) == (SHED, REJECT)
    room.take_turns(10, each=0.05)
    assert (room.load.push, room.load.pop) == (EXECUTE, EXECUTE)
