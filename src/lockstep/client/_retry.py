"""Whether, when and on which server a failed request is repeated. Pure: time and randomness are passed in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.errors import CorruptSegment, EmbeddedError, LockstepError, Overloaded, SchemaTooNew

DELAY_SECONDS_FIRST = 0.1

# A retry fails in the same way.
_HOPELESS = (CorruptSegment, SchemaTooNew, EmbeddedError)


def retryable(error: Exception) -> bool:
    """Whether the same request may succeed later. A full queue does not count: its producer has to know."""
    if not isinstance(error, LockstepError) or isinstance(error, _HOPELESS):
        return False
    return _status(error) >= 500 or isinstance(error, Overloaded)


def _status(error: LockstepError) -> int:
    """The HTTP status; for an answer without a Lockstep error, its own status."""
    told = error.details.get("status") if type(error) is LockstepError else None
    return told if isinstance(told, int) else error.status


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that failed."""

    error: LockstepError
    maybe_applied: bool = False
    """The server may have applied the request: it was sent, and no answer arrived."""
    unreachable: bool = False
    """Another server may succeed."""
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    attempts_max: int = 4
    delay_seconds_max: float = 30.0
    on_429: bool = True
    """Whether requests that a busy server refused are repeated."""
    honor_retry_after: bool = True

    def again(self, failure: Failure, attempt: int, *, repeatable: bool) -> bool:
        """Whether to repeat a request after the `attempt`-th failure; what is not repeatable must not be applied
        twice.
        """
        if attempt >= self.attempts_max or not retryable(failure.error):
            return False
        if isinstance(failure.error, Overloaded) and not self.on_429:
            return False
        return repeatable or not failure.maybe_applied

    def delay_seconds(self, attempt: int, chance: float, *, retry_after_seconds: float | None = None) -> float:
        """How long to wait after the `attempt`-th failure: doubling, with jitter, so that clients do not retry in step.

        `chance` is a random number between 0 and 1. A delay requested by the server counts, up to the longest delay.
        """
        longest = min(self.delay_seconds_max, DELAY_SECONDS_FIRST * 2.0 ** min(attempt - 1, 64))
        jittered = longest * (0.5 + chance / 2)
        if retry_after_seconds is None or not self.honor_retry_after:
            return jittered
        # The jitter is added: clients that were given the same delay must not retry in step, either.
        return min(retry_after_seconds + jittered, self.delay_seconds_max)


class Bases:
    """The servers of a client, by base URL: it keeps using one that works, and avoids one that failed for a while."""

    def __init__(self, urls: Sequence[str], *, cooldown_seconds: float) -> None:
        self._urls = list(urls)
        self._cooldown_seconds = cooldown_seconds
        self._current = 0
        self._resting_until: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._urls)

    def choose(self, now: float) -> str:
        """The current server; else the next one that is not avoided; else the one that is avoided for the shortest
        time.
        """
        ordered = self._urls[self._current :] + self._urls[: self._current]
        for url in ordered:
            if not self._rests(url, now):
                return url
        return min(ordered, key=lambda url: self._resting_until[url])

    def worked(self, url: str) -> None:
        self._resting_until.pop(url, None)
        self._current = self._urls.index(url)

    def failed(self, url: str, now: float) -> bool:
        """Avoid it for a while; returns whether another server can be tried at once."""
        self._resting_until[url] = now + self._cooldown_seconds
        return any(not self._rests(other, now) for other in self._urls)

    def _rests(self, url: str, now: float) -> bool:
        return self._resting_until.get(url, now) > now
