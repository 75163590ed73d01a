"""The load of a server, and what it therefore does with the next request: execute, queue or reject it.

*Load* is a number for each kind of request. It combines how long the oldest request has waited for its call, and how
long everything waits for its turn in this process; how many requests wait, and their size; the time of the fastest
recent call; and the number of calls for each connection. At 1 each of these is as bad as its setting allows. The worst
one counts.

A kind becomes *busy* at a threshold. It stops being busy once its load has been well below the threshold for a while
and the requests queued in the meantime are applied. The remedy depends on what is scarce:
* The store is slow. Pushes and acks are queued, which costs the store less than executing them; when too many are
  queued, they are refused. Pops cannot be queued, so they are refused.
* This process is short of time. Queueing a request and applying it later takes more of its time than executing it at
  once. So it *sheds*: it executes as many pushes at a time as it can, and refuses the rest before it has read them.
The load is sampled twice a second, and whenever the process is late. Only lasting load counts: a server at full speed
has long turns, and requests that meet wait for each other; refusing requests helps neither. So a load counts if two
samples in a row show it, and lateness if all of the last probes show it. A sudden crowd, or a full operation queue, is
known at once, because the requests themselves report it. See docs/decisions/0019.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from math import inf
from typing import Literal, Protocol

from lockstep.config import Config
from lockstep.core.operations import KindLoad, OperationCounts
from lockstep.core.statistics import StoreCounts
from lockstep.engine.pace import Crowd
from lockstep.errors import Overloaded

logger = logging.getLogger("lockstep.engine.load")

LoadKind = Literal["push", "ack", "pop"]
"""The kinds of requests whose load is managed."""

LOAD_KINDS: tuple[LoadKind, ...] = ("push", "ack", "pop")
_RETRY_SECONDS_MIN = 1.0
_RETRY_SECONDS_MAX = 30.0
_PROBE_SECONDS = 0.1
_PROBES = 5
"""This many in a row must be late: a few large requests delay everything for some turns, which is not load."""
_LATE_SHARE = 0.1
"""Weight of the last probe in the average."""
_LATE_LEAVE = 3
"""A process that sheds stays short of time until its lateness has fallen by this factor, because shedding itself frees
time.
"""


class Decision(Enum):
    """What happens to the next request."""

    EXECUTE = "execute"
    QUEUE = "queue"
    SHED = "shed"
    """It is executed if few enough others are being executed, and refused otherwise."""
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When requests of a kind are not simply executed."""

    load: float
    """The kind is busy from this load on."""
    depth_max: int = 0
    """Maximum number of waiting operations of the kind; 0: it is never queued."""
    leave_ratio: float = 0.8
    """A state entered at a threshold is left below this fraction of it."""
    stay_seconds: float = 2.0
    """A busy kind stays busy for at least this long."""
    sheds: bool = False
    """Whether it is shed instead of queued while the process is short of time."""


@dataclass(frozen=True, slots=True)
class Situation:
    """The input of a decision."""

    load: float = 0.0
    depth: float = 0.0
    """How much is queued, as a fraction of the maximum."""
    draining: bool = False
    """Queued operations are being applied, and more wait."""
    late: bool = False
    """The process is short of time."""
    refused: bool = False
    """Requests were refused since the last sample."""


def decide(now: Decision, seconds: float, situation: Situation, thresholds: Thresholds) -> Decision:
    """The decision for the next requests; `now` is the current one, which has held for `seconds`."""
    if not _is_busy(now, seconds, situation, thresholds):
        return Decision.EXECUTE
    if thresholds.depth_max == 0:
        return Decision.REJECT
    if _is_full(now, seconds, situation.depth, thresholds):
        return Decision.REJECT
    # Queued operations are applied before anything is executed that might have to come after them.
    return Decision.SHED if thresholds.sheds and situation.late and not situation.draining else Decision.QUEUE


def _is_full(now: Decision, seconds: float, depth: float, thresholds: Thresholds) -> bool:
    """Whether no more may be queued. A queue that was full counts as full for a while even if it empties fast, so that
    the decision does not flap; but not so long that it runs empty."""
    if now is not Decision.REJECT:
        return depth >= 1.0
    return depth >= thresholds.leave_ratio or (seconds < thresholds.stay_seconds and depth > 1 - thresholds.leave_ratio)


def _is_busy(now: Decision, seconds: float, situation: Situation, thresholds: Thresholds) -> bool:
    if situation.load >= thresholds.load:
        return True
    if now is Decision.EXECUTE:
        return False
    if now is Decision.SHED and situation.refused:
        # It has little to do only because it sheds. More requests would be read and decoded before it sheds again.
        return True
    rested = situation.load < thresholds.load * thresholds.leave_ratio and seconds >= thresholds.stay_seconds
    return not rested or situation.draining


def pool_load(store: StoreCounts) -> float:
    """0.5 while all connections are in use; 1 when as many calls again wait for a connection."""
    if not store.connections_max:
        return 0.0
    used = store.connections_open - store.connections_idle + store.connection_waiters
    return used / (2 * store.connections_max)


def load_of(crowd: Crowd, pool: float, config: Config, *, late_seconds: float = 0.0) -> float:
    """The load of one kind of request; `late_seconds` is how long everything waits for its turn in the process."""
    return max(
        (crowd.oldest_seconds + late_seconds) / config.load_wait_seconds_max,
        crowd.requests / config.load_requests_max,
        crowd.bytes / config.load_bytes_max,
        crowd.fastest_seconds / config.load_latency_seconds_max,
        pool,
    )


@dataclass(slots=True)
class LoadState:
    """The state of one kind of request."""

    answer: Decision = Decision.EXECUTE
    load: float = 0.0
    since: float = 0.0
    depth: int = 0
    """Operations that wait, as far as this process knows."""
    bytes: int = 0
    uncounted: int = 0
    """Operations queued here since the last query of the store, which its answer may not include."""
    uncounted_bytes: int = 0
    queued: int = 0
    rejected: int = 0
    changes: int = 0
    logged: Decision = Decision.EXECUTE
    """The decision that was logged last, when, and the number of changes by then."""
    logged_at: float = -inf
    logged_changes: int = 0


class WaitingRequests(Protocol):
    """The requests that wait in this process (`batching.py`)."""

    def crowds(self) -> dict[LoadKind, Crowd]: ...
    def has_time(self, coming: int = 0) -> bool: ...
    def queueing(self, coming: int = 0) -> int: ...
    def queueing_seconds(self, kind: LoadKind) -> float: ...
    def refuse_waiting(self, kind: LoadKind, seconds: float, refusal: Callable[[], Exception]) -> None: ...


@dataclass(slots=True)
class Load:
    """The decisions, by kind. Until `manage` is called, everything is executed."""

    config: Config
    requests: WaitingRequests
    clock: Callable[[], float] = time.monotonic
    push: Decision = Decision.EXECUTE
    """The hot path reads only these three."""
    ack: Decision = Decision.EXECUTE
    pop: Decision = Decision.EXECUTE
    states: dict[LoadKind, LoadState] = field(default_factory=lambda: {kind: LoadState() for kind in LOAD_KINDS})
    drain_rate: float = 0.0
    """Operations applied per second, recently."""
    draining: bool = False
    managed: bool = False
    coming: int = 0
    """Pushes let in since the last probe before their bodies were read. Thousands may begin in one turn: if each of
    them found room for one, nearly all would be read only to be refused."""
    late_seconds: float = 0.0
    """How long everything has waited for its turn in the process for a while."""
    late_seconds_average: float = 0.0
    """Average of about the last second."""
    _thresholds: dict[LoadKind, Thresholds] = field(init=False)
    _seen: dict[LoadKind, float] = field(default_factory=dict)
    """The load in the last sample, whether it counts or not."""
    _rejected: dict[LoadKind, int] = field(default_factory=dict)
    """How many had been refused by the last sample."""

    def __post_init__(self) -> None:
        config = self.config
        leave, stay = config.load_leave_ratio, config.load_stay_seconds
        for state in self.states.values():
            state.since = self.clock()
        self._thresholds = {
            "push": Thresholds(config.load_push_threshold, config.operation_push_depth_max, leave, stay, sheds=True),
            "ack": Thresholds(config.load_ack_threshold, config.operation_ack_depth_max, leave, stay),
            # Nothing is queued that would have to be applied first, so pops resume as soon as the load is gone.
            "pop": Thresholds(config.load_pop_threshold, 0, leave, stay_seconds=0),
        }

    def manage(self) -> None:
        """Decide from now on."""
        self.managed = self.config.load_management

    def sample(self, store: StoreCounts) -> None:
        """Sample the load and decide."""
        crowds, pool = self.requests.crowds(), pool_load(store)
        for kind in LOAD_KINDS:
            seen = load_of(crowds[kind], pool, self.config, late_seconds=self.late_seconds)
            self.states[kind].load = min(seen, self._seen.get(kind, 0.0))
            self._seen[kind] = seen
            self._decide(kind)
            self._rejected[kind] = self.states[kind].rejected
            if self.managed:
                self.requests.refuse_waiting(kind, self.config.load_refuse_seconds, partial(self.refusal, kind))
                self._log(kind, self.clock())

    def begin_count(self) -> None:
        """Call before querying the store for its counts."""
        for state in self.states.values():
            state.uncounted = state.uncounted_bytes = 0

    def note_counts(self, counts: OperationCounts) -> None:
        """The counts of all servers together. They may or may not include operations queued in the meantime; these are
        added until the next counts, so that a limit holds."""
        for depth in counts.pending:
            state = self.states[depth.kind]
            state.depth, state.bytes = depth.operations + state.uncounted, depth.bytes + state.uncounted_bytes

    def note_late(self, seconds: float, *, lasting: float) -> None:
        """Everything waits this long for its turn, and has waited at least `lasting` for a while."""
        self.coming = 0
        self.late_seconds = lasting
        self.late_seconds_average += _LATE_SHARE * (seconds - self.late_seconds_average)
        load = lasting / self.config.load_wait_seconds_max
        for kind in LOAD_KINDS:
            if load > self.states[kind].load and load >= self._thresholds[kind].load:
                self.states[kind].load = load
                self._decide(kind)

    def note_crowd(self, kind: LoadKind) -> None:
        """Too many requests of a kind wait for their call: it is busy from now on. The reason is not known yet, and
        queued requests cannot be executed any more; so it sheds until the next sample."""
        self.states[kind].load = self._seen[kind] = max(self.states[kind].load, 1.0)
        if self.states[kind].answer is Decision.EXECUTE:
            self._decide(kind, late=True)

    def note_queued(self, kind: Literal["push", "ack"], size: int) -> None:
        """A request was queued here."""
        state = self.states[kind]
        state.queued += 1
        state.depth += 1
        state.bytes += size
        state.uncounted += 1
        state.uncounted_bytes += size
        if self._depth(kind) >= 1.0 and state.answer is Decision.QUEUE:
            self._decide(kind)

    def note_applied(self, operations: int, seconds: float) -> None:
        """Operations were applied here."""
        rate = operations / max(seconds, 0.001)
        self.drain_rate = rate if self.drain_rate == 0.0 else self.drain_rate * 0.7 + rate * 0.3

    def executes_push(self, coming: int = 0) -> bool:
        """Whether a busy server executes one more push now. False if it queues the push. Raises Overloaded if it does
        neither."""
        if self.push is Decision.SHED and self.requests.has_time(coming):
            return True
        if (
            self.push is Decision.QUEUE
            and self.requests.queueing(coming) < self.config.load_busy_messages_max
            and self.has_room("push")
        ):
            return False
        raise self.refusal("push")

    def let_in(self) -> None:
        """A push begins to arrive. Raises Overloaded if it would be refused."""
        if self.push is not Decision.EXECUTE:
            self.executes_push(self.coming)
            self.coming += 1

    def has_room(self, kind: Literal["push", "ack"]) -> bool:
        """Whether one more may be queued, and the store accepts it: if it stalls, the producer would wait."""
        return self._depth(kind) < 1.0 and self.requests.queueing_seconds(kind) < self.config.load_latency_seconds_max

    def wait_seconds(self, position: int) -> float:
        """The expected wait of an operation at this position."""
        return round(position / self.drain_rate, 3) if self.drain_rate else _RETRY_SECONDS_MIN

    def check(self, kind: LoadKind) -> None:
        """Raises Overloaded if requests of this kind are refused now."""
        answer = getattr(self, kind)
        if answer is Decision.EXECUTE:
            return
        if kind == "push":
            self.executes_push()
        elif answer is Decision.REJECT:
            raise self.refusal(kind)

    def refusal(self, kind: LoadKind) -> Overloaded:
        """The error of a refused request, which says when to try again."""
        state = self.states[kind]
        state.rejected += 1
        over = state.depth * (1 - self._thresholds[kind].leave_ratio)
        seconds = self.wait_seconds(int(over)) if over else _RETRY_SECONDS_MIN
        after = round(min(max(seconds, _RETRY_SECONDS_MIN), _RETRY_SECONDS_MAX))
        return Overloaded(f"the server is busy; try again in {after} s", kind=kind, retry_after_seconds=after)

    def shown(self) -> list[KindLoad]:
        """The decisions, for display."""
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

    def _late_seconds(self, answer: Decision) -> float:
        return self.config.load_late_seconds / (_LATE_LEAVE if answer is Decision.SHED else 1)

    def _change(self, kind: LoadKind, answer: Decision, now: float) -> None:
        state = self.states[kind]
        state.answer, state.since = answer, now
        state.changes += 1
        setattr(self, kind, answer)
        self._log(kind, now)

    def _log(self, kind: LoadKind, now: float) -> None:
        """Log the current decision, and how often it has changed since the last line. There are no more lines than
        busy periods, because close to a limit a decision may flap."""
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
        level = logging.INFO if state.answer is Decision.EXECUTE else logging.WARNING
        logger.log(level, "load_changed", extra=fields)
        state.logged, state.logged_at, state.logged_changes = state.answer, now, state.changes


class Lateness:
    """How long everything waits for its turn in the event loop, measured by how late a timer fires. The timer fires
    whatever the store does, so it also samples the load."""

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
