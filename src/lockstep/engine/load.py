"""How busy a server is, and what it does with the next request because of it: execute, queue or reject it.

*Load* is a number for each kind of request, made of what its requests meet: how long the first of them has waited for
its call, and everything for its turn in this process; how many wait and how large they are; how long the fastest call
of late took; and how many calls there are for each connection. At 1 each of these is as bad as its setting allows. The
worst one counts.

A kind is *busy* from a threshold on, and no longer once its load has been well below that for a while, and what was
queued meanwhile is applied. What helps then depends on what there is too little of:
* The store is slow: pushes and acks are queued, which costs it less than executing them, and are refused when too many
  are. Pops cannot be queued, and are refused.
* This process itself is short of time: to queue a request and apply it later takes it more time than to execute it at
  once. So it *sheds*: it executes as many pushes as it can at a time and refuses the rest before it has read them.
Load is looked at twice a second, and whenever the process is late. Only what lasts is load: a server that does all it
can has long turns, requests that meet wait for each other, and neither is helped by refusing anybody. So a load counts
if it was there at two looks in a row, and being late if it was at all of the last probes. A sudden crowd, or a full
operation queue, is known at once: the requests themselves tell of it. See docs/decisions/0019.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from math import inf
from typing import Literal

from lockstep.config import Config
from lockstep.core.operations import KindLoad, OperationCounts
from lockstep.core.statistics import StoreCounts
from lockstep.engine.batching import LoadKind
from lockstep.engine.lane import Crowd
from lockstep.errors import Overloaded

logger = logging.getLogger("lockstep.engine.load")

LOAD_KINDS: tuple[LoadKind, ...] = ("push", "ack", "pop")
_RETRY_SECONDS_MIN = 1.0
_RETRY_SECONDS_MAX = 30.0
_PROBE_SECONDS = 0.1
_PROBES = 5
"""So many in a row have to be late: a few large requests make everybody late for some turns, and are no load."""
_LATE_SHARE = 0.1
"""Of the last probe, in the average."""
_LATE_LEAVE = 3
"""A process that sheds is short of time until it is so many times less late: the less it lets in, the more it has."""


class Answer(Enum):
    """What is done with the next request."""

    EXECUTE = "execute"
    QUEUE = "queue"
    SHED = "shed"
    """It is executed if few enough are being executed, else refused."""
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When a kind of request is not simply executed."""

    load: float
    """From here on it is busy."""
    depth_max: int = 0
    """Most operations of the kind that may wait; 0: it is never queued."""
    leave_ratio: float = 0.8
    """What was entered at a threshold is left below this part of it."""
    stay_seconds: float = 2.0
    """A busy kind stays so for at least this long."""
    sheds: bool = False
    """Whether it is shed, and not queued, while the process is short of time."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What a decision is made from."""

    load: float = 0.0
    depth: float = 0.0
    """How much is queued, as a part of what may be."""
    draining: bool = False
    """What was queued is being applied, and there is more of it."""
    late: bool = False
    """The process is short of time."""
    refused: bool = False
    """Some were refused since the last look."""


def decide(now: Answer, seconds: float, situation: Situation, thresholds: Thresholds) -> Answer:
    """The answer to the next requests; `now` is the one of late, for so many seconds."""
    if not _is_busy(now, seconds, situation, thresholds):
        return Answer.EXECUTE
    if thresholds.depth_max == 0:
        return Answer.REJECT
    if _is_full(now, seconds, situation.depth, thresholds):
        return Answer.REJECT
    # What was queued is applied before anything is executed that might have to stand behind it.
    return Answer.SHED if thresholds.sheds and situation.late and not situation.draining else Answer.QUEUE


def _is_full(now: Answer, seconds: float, depth: float, thresholds: Thresholds) -> bool:
    """Whether no more may be queued. A queue that was full counts as full for a while, even if it empties fast, so that
    the answer does not flap; but not until there is nothing left to apply."""
    if now is not Answer.REJECT:
        return depth >= 1.0
    return depth >= thresholds.leave_ratio or (seconds < thresholds.stay_seconds and depth > 1 - thresholds.leave_ratio)


def _is_busy(now: Answer, seconds: float, situation: Situation, thresholds: Thresholds) -> bool:
    if situation.load >= thresholds.load:
        return True
    if now is Answer.EXECUTE:
        return False
    if now is Answer.SHED and situation.refused:
        # It has as little to do as it lets in. More would come, and would be read and decoded before it sheds again.
        return True
    rested = situation.load < thresholds.load * thresholds.leave_ratio and seconds >= thresholds.stay_seconds
    return not rested or situation.draining


def pool_load(store: StoreCounts) -> float:
    """All connections in use are a server that works, 0.5; as many calls again that wait for one are too much, 1."""
    if not store.connections_max:
        return 0.0
    used = store.connections_open - store.connections_idle + store.connection_waiters
    return used / (2 * store.connections_max)


def load_of(crowd: Crowd, pool: float, config: Config, *, late_seconds: float = 0.0) -> float:
    """The load of one kind of request; `late_seconds` is how long anything waits for its turn in the process."""
    return max(
        (crowd.oldest_seconds + late_seconds) / config.load_wait_seconds_max,
        crowd.requests / config.load_requests_max,
        crowd.bytes / config.load_bytes_max,
        crowd.fastest_seconds / config.load_latency_seconds_max,
        pool,
    )


@dataclass(slots=True)
class LoadState:
    """Of one kind of request, for people."""

    answer: Answer = Answer.EXECUTE
    load: float = 0.0
    since: float = 0.0
    depth: int = 0
    """Operations that wait, as far as is known here."""
    bytes: int = 0
    uncounted: int = 0
    """Those that were queued here since the store was asked, and which its answer may not know of."""
    uncounted_bytes: int = 0
    queued: int = 0
    rejected: int = 0
    changes: int = 0
    logged: Answer = Answer.EXECUTE
    """What the log says last, when it said so, and what had changed by then."""
    logged_at: float = -inf
    logged_changes: int = 0


@dataclass(slots=True)
class Load:
    """What is decided, by kind. Until it is told otherwise everything is executed."""

    config: Config
    crowds: Callable[[], Mapping[LoadKind, Crowd]]
    """How requests wait now; what is told of calls is since it was last asked."""
    clock: Callable[[], float]
    queueing: Callable[[int], int] = lambda _: 0
    """How many messages of pushes wait to be queued, with so many pushes that are still coming."""
    has_time: Callable[[int], bool] = lambda _: True
    """Whether few enough pushes wait to be executed for one more, with so many that are still coming."""
    queueing_seconds: Callable[[Literal["push", "ack"]], float] = lambda _: 0.0
    """For how long the store has taken nothing of what waits to be queued."""
    refuse_waiting: Callable[[LoadKind, float, Callable[[], Exception]], None] = lambda *_: None
    """Refuse what has waited so long for its call."""
    push: Answer = Answer.EXECUTE
    """The hot path looks at these three, and at nothing else."""
    ack: Answer = Answer.EXECUTE
    pop: Answer = Answer.EXECUTE
    states: dict[LoadKind, LoadState] = field(default_factory=lambda: {kind: LoadState() for kind in LOAD_KINDS})
    drain_rate: float = 0.0
    """Operations that are applied in a second, of late."""
    draining: bool = False
    managed: bool = False
    coming: int = 0
    """Pushes that were let in, since the last probe, before their bodies were read. In one turn thousands may begin,
    and if each of them were told that there is room for one, all but a few would be read to be refused."""
    late_seconds: float = 0.0
    """How long anything waits for its turn in the process, and has for a while."""
    late_seconds_average: float = 0.0
    """Of the last second or so."""
    _thresholds: dict[LoadKind, Thresholds] = field(init=False)
    _seen: dict[LoadKind, float] = field(default_factory=dict)
    """The load at the last look, whether it counts or not."""
    _rejected: dict[LoadKind, int] = field(default_factory=dict)
    """How many had been refused by the last look."""

    def __post_init__(self) -> None:
        config = self.config
        leave, stay = config.load_leave_ratio, config.load_stay_seconds
        for state in self.states.values():
            state.since = self.clock()
        self._thresholds = {
            "push": Thresholds(config.load_push_threshold, config.operation_push_depth_max, leave, stay, sheds=True),
            "ack": Thresholds(config.load_ack_threshold, config.operation_ack_depth_max, leave, stay),
            # Nothing is queued that would have to be applied first, so pops go on when the load is gone.
            "pop": Thresholds(config.load_pop_threshold, 0, leave, stay_seconds=0),
        }

    def manage(self) -> None:
        """Begin to decide."""
        self.managed = self.config.load_management

    def sample(self, store: StoreCounts) -> None:
        """Look at everything and decide."""
        crowds, pool = self.crowds(), pool_load(store)
        for kind in LOAD_KINDS:
            seen = load_of(crowds[kind], pool, self.config, late_seconds=self.late_seconds)
            self.states[kind].load = min(seen, self._seen.get(kind, 0.0))
            self._seen[kind] = seen
            self._decide(kind)
            self._rejected[kind] = self.states[kind].rejected
            if self.managed:
                self.refuse_waiting(kind, self.config.load_refuse_seconds, partial(self.refusal, kind))
                self._log(kind, self.clock())

    def begin_count(self) -> None:
        """The store is about to be asked what waits."""
        for state in self.states.values():
            state.uncounted = state.uncounted_bytes = 0

    def note_counts(self, counts: OperationCounts) -> None:
        """What waits, of all servers together. What was queued meanwhile may or may not be among it; so that a limit
        holds, it is counted on top until the next look."""
        for depth in counts.pending:
            state = self.states[depth.kind]
            state.depth, state.bytes = depth.operations + state.uncounted, depth.bytes + state.uncounted_bytes

    def note_late(self, seconds: float, *, lasting: float) -> None:
        """Anything waits so long for its turn; and has, for a while, for at least as long as is `lasting`."""
        self.coming = 0
        self.late_seconds = lasting
        self.late_seconds_average += _LATE_SHARE * (seconds - self.late_seconds_average)
        load = lasting / self.config.load_wait_seconds_max
        for kind in LOAD_KINDS:
            if load > self.states[kind].load and load >= self._thresholds[kind].load:
                self.states[kind].load = load
                self._decide(kind)

    def note_crowd(self, kind: LoadKind) -> None:
        """More requests of a kind wait for their call than may: it is busy now. Why, nobody knows yet, and what is
        queued cannot be executed any more; so it sheds until the next look."""
        self.states[kind].load = self._seen[kind] = max(self.states[kind].load, 1.0)
        if self.states[kind].answer is Answer.EXECUTE:
            self._decide(kind, late=True)

    def note_queued(self, kind: Literal["push", "ack"], size: int) -> None:
        """A request was queued here."""
        state = self.states[kind]
        state.queued += 1
        state.depth += 1
        state.bytes += size
        state.uncounted += 1
        state.uncounted_bytes += size
        if self._depth(kind) >= 1.0 and state.answer is Answer.QUEUE:
            self._decide(kind)

    def note_applied(self, operations: int, seconds: float) -> None:
        """So many operations were applied here."""
        rate = operations / max(seconds, 0.001)
        self.drain_rate = rate if self.drain_rate == 0.0 else self.drain_rate * 0.7 + rate * 0.3

    def executes_push(self, coming: int = 0) -> bool:
        """Whether a busy server executes one more now, in place of queueing it. Raises Overloaded if neither."""
        if self.push is Answer.SHED and self.has_time(coming):
            return True
        if (
            self.push is Answer.QUEUE
            and self.queueing(coming) < self.config.load_busy_messages_max
            and self.has_room("push")
        ):
            return False
        raise self.refusal("push")

    def let_in(self) -> None:
        """A push begins to arrive. Raises Overloaded if it is not worth reading."""
        if self.push is not Answer.EXECUTE:
            self.executes_push(self.coming)
            self.coming += 1

    def has_room(self, kind: Literal["push", "ack"]) -> bool:
        """Whether one more may be queued, and the store takes it: one that stalls would keep the producer waiting."""
        return self._depth(kind) < 1.0 and self.queueing_seconds(kind) < self.config.load_latency_seconds_max

    def wait_seconds(self, position: int) -> float:
        """How long an operation at this place is likely to wait."""
        return round(position / self.drain_rate, 3) if self.drain_rate else _RETRY_SECONDS_MIN

    def check(self, kind: LoadKind) -> None:
        """Raises Overloaded if requests of this kind are refused now."""
        answer = getattr(self, kind)
        if answer is Answer.EXECUTE:
            return
        if kind == "push":
            self.executes_push()
        elif answer is Answer.REJECT:
            raise self.refusal(kind)

    def refusal(self, kind: LoadKind) -> Overloaded:
        """The error of a request that is refused: it says when to come again."""
        state = self.states[kind]
        state.rejected += 1
        over = state.depth * (1 - self._thresholds[kind].leave_ratio)
        seconds = self.wait_seconds(int(over)) if over else _RETRY_SECONDS_MIN
        after = round(min(max(seconds, _RETRY_SECONDS_MIN), _RETRY_SECONDS_MAX))
        return Overloaded(f"the server is busy; try again in {after} s", kind=kind, retry_after_seconds=after)

    def shown(self) -> list[KindLoad]:
        """For people."""
        now = self.clock()
        return [
            KindLoad(
                kind=kind,
                answer=state.answer.value,
                load=round(state.load, 4),
                seconds=round(now - state.since, 3),
                queued=state.queued,
                rejected=state.rejected,
            )
            for kind, state in self.states.items()
        ]

    def _depth(self, kind: LoadKind) -> float:
        state, depth_max = self.states[kind], self._thresholds[kind].depth_max
        if depth_max == 0:
            return 0.0
        return max(state.depth / depth_max, state.bytes / self.config.operation_bytes_max)

    def _decide(self, kind: LoadKind, *, late: bool = False) -> None:
        if not self.managed:
            return
        state, now = self.states[kind], self.clock()
        late = late or self.late_seconds_average >= self._late_seconds(state.answer)
        refused = state.rejected > self._rejected.get(kind, 0)
        situation = Situation(state.load, self._depth(kind), self.draining and kind != "pop", late, refused)
        answer = decide(state.answer, now - state.since, situation, self._thresholds[kind])
        if answer is not state.answer:
            self._change(kind, answer, now)

    def _late_seconds(self, answer: Answer) -> float:
        return self.config.load_late_seconds / (_LATE_LEAVE if answer is Answer.SHED else 1)

    def _change(self, kind: LoadKind, answer: Answer, now: float) -> None:
        state = self.states[kind]
        state.answer, state.since = answer, now
        state.changes += 1
        setattr(self, kind, answer)
        self._log(kind, now)

    def _log(self, kind: LoadKind, now: float) -> None:
        """Say what the answer is now, and how often it has changed since that was last said: not more often than a
        busy kind stays so, because at a limit it may go to and fro."""
        state = self.states[kind]
        if state.answer is state.logged or now - state.logged_at < self._thresholds["push"].stay_seconds:
            return
        fields = {
            "action": "load_changed",
            "kind": kind,
            "answer": state.answer.value,
            "before": state.logged.value,
            "changes": state.changes - state.logged_changes,
            "load": round(state.load, 3),
            "depth": state.depth,
        }
        level = logging.INFO if state.answer is Answer.EXECUTE else logging.WARNING
        logger.log(level, "load_changed", extra=fields)
        state.logged, state.logged_at, state.logged_changes = state.answer, now, state.changes


class Lateness:
    """How long anything waits for its turn in the event loop: looked at by coming too late. And, because this comes
    whatever the store does, the time to look at everything."""

    def __init__(self, load: Load, store: Callable[[], StoreCounts]) -> None:
        self._load = load
        self._store = store
        self._sample_at = 0.0
        self._late: deque[float] = deque([0.0] * (_PROBES - 1), maxlen=_PROBES - 1)
        self._due_at = 0.0
        self._probe: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._probe is None:
            self._ask(asyncio.get_running_loop())

    def stop(self) -> None:
        if self._probe is not None:
            self._probe.cancel()
            self._probe = None

    def _ask(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due_at = loop.time() + _PROBE_SECONDS
        self._probe = loop.call_at(self._due_at, self._come, loop)

    def _come(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        late = max(now - self._due_at, 0.0)
        self._load.note_late(late, lasting=min(late, *self._late))
        self._late.append(late)
        if now >= self._sample_at:
            self._load.sample(self._store())
            self._sample_at = now + self._load.config.load_interval_seconds
        self._ask(loop)
