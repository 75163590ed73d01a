"""Whether a request that failed is sent again, when, and to which server. Pure: time and chance are passed in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.errors import CorruptSegment, EmbeddedError, LockstepError, Overloaded, SchemaTooNew

DELAY_SECONDS_FIRST = 0.1

# They fail the same way again.
_HOPELESS = (CorruptSegment, SchemaTooNew, EmbeddedError)


def retryable(error: Exception) -> bool:
    """Whether the same request may succeed later. A full queue does not count: its producer has to know."""
    if not isinstance(error, LockstepError) or isinstance(error, _HOPELESS):
        return False
    return _status(error) >= 500 or isinstance(error, Overloaded)


def _status(error: LockstepError) -> int:
    """Of an answer that names no error of ours, its own."""
    told = error.details.get("status") if type(error) is LockstepError else None
    return told if isinstance(told, int) else error.status


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that failed."""

    error: LockstepError
    maybe_applied: bool = False
    """The server may have done what was asked: the request was sent, and its answer did not come."""
    unreachable: bool = False
    """Another server may do better."""
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    attempts_max: int = 4
    delay_seconds_max: float = 30.0
    on_429: bool = True
    """Whether what a busy server refused is sent again."""
    honor_retry_after: bool = True

    def again(self, failure: Failure, attempt: int, *, repeatable: bool) -> bool:
        """Whether to send again after the `attempt`-th failure; what is not repeatable must not be applied twice."""
        if attempt >= self.attempts_max or not retryable(failure.error):
            return False
        if isinstance(failure.error, Overloaded) and not self.on_429:
            return False
        return repeatable or not failure.maybe_applied

    def delay_seconds(self, attempt: int, chance: float, *, retry_after_seconds: float | None = None) -> float:
        """How long to wait after the `attempt`-th failure: doubling, with jitter, so that clients do not come in step.

        `chance` is a random number between 0 and 1. What the server asks for counts, up to the longest delay.
        """
        longest = min(self.delay_seconds_max, DELAY_SECONDS_FIRST * 2.0 ** min(attempt - 1, 64))
        jittered = longest * (0.5 + chance / 2)
        if retry_after_seconds is None or not self.honor_retry_after:
            return jittered
        # The jitter comes on top: clients that got the same time must not come together, either.
        return min(retry_after_seconds + jittered, self.delay_seconds_max)


class Bases:
    """The servers of a client, by base URL: the one that works is kept, one that failed rests for a while."""

    def __init__(self, urls: Sequence[str], *, cooldown_seconds: float) -> None:
        self._urls = list(urls)
        self._cooldown_seconds = cooldown_seconds
        self._current = 0
        self._resting_until: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._urls)

    def choose(self, now: float) -> str:
        """The current one; else the next that does not rest; else the one whose rest ends first."""
        ordered = self._urls[self._current :] + self._urls[: self._current]
        for url in ordered:
            if not self._rests(url, now):
                return url
        return min(ordered, key=lambda url: self._resting_until[url])

    def worked(self, url: str) -> None:
        self._resting_until.pop(url, None)
        self._current = self._urls.index(url)

    def failed(self, url: str, now: float) -> bool:
        """Let it rest; says whether another one is ready to be asked at once."""
        self._resting_until[url] = now + self._cooldown_seconds
        return any(not self._rests(other, now) for other in self._urls)

    def _rests(self, url: str, now: float) -> bool:
        return self._resting_until.get(url, now) > now
