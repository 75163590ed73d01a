"""Reports queries: counts by name, a log line for a slow query, and the user's hook."""

from __future__ import annotations

import logging

from lockstep.core.statistics import QueryCounts, QueryHook

logger = logging.getLogger("lockstep.storage.queries")


class QueryLog:
    """Notes every query of a store."""

    def __init__(self, slow_seconds: float, hook: QueryHook | None) -> None:
        self._slow_seconds = slow_seconds
        self._hook = hook
        self.counts: dict[str, QueryCounts] = {}
        """By the name of the query."""

    def note(self, name: str, seconds: float, error: BaseException | None) -> None:
        counts = self.counts.get(name)
        if counts is None:
            counts = self.counts[name] = QueryCounts()
        counts.calls += 1
        counts.seconds += seconds
        counts.failures += error is not None
        if 0 < self._slow_seconds <= seconds:
            counts.slow += 1
            fields = {"query": name, "seconds": round(seconds, 3), "error": None if error is None else str(error)}
            logger.warning("query_slow", extra={"action": "query_slow", **fields})
        if self._hook is not None:
            self._call(self._hook, name, seconds, error)

    def _call(self, hook: QueryHook, name: str, seconds: float, error: BaseException | None) -> None:
        """A hook that fails must not fail the query."""
        try:
            hook(name, seconds, error)
        except Exception:
            logger.exception("query_hook_failed", extra={"action": "query_hook_failed", "query": name})
