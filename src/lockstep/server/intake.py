"""Limits on what a server process takes in at a time: connections, bytes of bodies, and requests of one address.

Beyond the limit of connections, a few more are accepted for /health and /ready only, so that a monitor does not take a
full server for dead. If there are too many of these, the oldest is refused and closed; if too many are being refused,
the oldest is cut.
"""

from __future__ import annotations

import logging
import math
import resource
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from ipaddress import IPv6Address, IPv6Network
from typing import Protocol

from lockstep.config import Config
from lockstep.errors import TooManyBytes, TooManyConnections, TooManyRequests
from lockstep.server.exposure import address_in

logger = logging.getLogger("lockstep.server")

PROBES = frozenset({b"/health", b"/ready"})
"""Paths that are always answered."""
_SPARE_CONNECTIONS = 64
_PARTING_CONNECTIONS = 128
"""Connections beyond these that are being refused; each lasts until its client has read why."""
_OTHER_FILES = 256
"""Files that a process has open besides its clients' connections: database, log, spool."""
_ADDRESSES_REMEMBERED = 10_000


class Guest(Protocol):
    """A connection of a client."""

    def cut(self) -> None:
        """End now, without a word."""

    def part(self) -> None:
        """End with an answer that says why."""


class Intake:
    """The limits of one process, and their current usage."""

    def __init__(self, config: Config) -> None:
        self._connections_max = min(config.connections_max, _room_for_files())
        self._per_address_max = config.connections_per_address_max
        self._bytes_max = config.bodies_bytes_max
        self._summary_seconds = config.log_summary_seconds
        self._connections = 0
        self._by_address: Counter[str] = Counter()
        self._spare: OrderedDict[Guest, None] = OrderedDict()
        """Connections beyond the limit, the oldest first."""
        self._parting: OrderedDict[Guest, None] = OrderedDict()
        """Those that are being refused because there are too many of them, the oldest first."""
        self._told_at = -math.inf
        self._refused = 0
        """Connections beyond the limit that have not been logged yet."""
        self.bytes = 0
        """Bytes received in the bodies of requests that are not answered yet."""

    def enter(self, guest: Guest, address: str) -> TooManyConnections | None:
        """Count a connection. If there are too many, returns why only a few paths are answered on it."""
        full = self._full(address)
        if full is None:
            self._connections += 1
            self._by_address[address] += 1
            return None
        self._spare[guest] = None
        self._tell(full, address)
        if len(self._spare) > _SPARE_CONNECTIONS:
            oldest, _ = self._spare.popitem(last=False)
            self._parting[oldest] = None
            oldest.part()
        if len(self._parting) > _PARTING_CONNECTIONS:
            self._parting.popitem(last=False)[0].cut()
        return full

    def leave(self, guest: Guest, address: str, *, spare: bool) -> None:
        """A connection has ended; `spare` if it was beyond the limit."""
        if spare:
            self._spare.pop(guest, None)
            self._parting.pop(guest, None)
            return
        self._connections -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def _full(self, address: str) -> TooManyConnections | None:
        if self._connections >= self._connections_max:
            return TooManyConnections(f"the server has {self._connections_max} connections (connections_max)")
        if self._by_address[address] >= self._per_address_max:
            return TooManyConnections(
                f"this address has {self._per_address_max} connections (connections_per_address_max)"
            )
        return None

    def _tell(self, full: TooManyConnections, address: str) -> None:
        """At most one line per interval, because a flood of connections would otherwise fill the log."""
        self._refused += 1
        now = time.monotonic()
        if now - self._told_at >= self._summary_seconds:
            fields = {"reason": full.message, "address": address, "connections": self._refused}
            logger.warning("connections_exhausted", extra={"action": "connections_exhausted", **fields})
            self._told_at, self._refused = now, 0

    def take(self, count: int) -> None:
        """Count bytes of a body. Raises TooManyBytes."""
        self.bytes += count
        if self.bytes > self._bytes_max:
            raise TooManyBytes(f"the bodies of all requests have more than {self._bytes_max} bytes (bodies_bytes_max)")

    @contextmanager
    def holding(self, count: int) -> Iterator[None]:
        """Count the bytes that a body becomes while it is processed. Raises TooManyBytes."""
        try:
            self.take(count)
            yield
        finally:
            self.bytes -= count


class Rates:
    """How many requests each caller sends: a token bucket per caller, which holds one second's worth."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._size = max(per_second, 1.0)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """By caller: the tokens left at its last request, and the time of that request; most recent caller last."""

    def check(self, caller: str, now: float) -> None:
        """Raises TooManyRequests."""
        left, at = self._buckets.pop(caller, (self._size, now))
        left = min(left + (now - at) * self._per_second, self._size)
        self._buckets[caller] = (left - 1 if left >= 1 else left, now)
        if len(self._buckets) > _ADDRESSES_REMEMBERED:
            self._buckets.popitem(last=False)
        if left < 1:
            raise TooManyRequests(
                f"one caller sent more than {self._per_second:g} requests in a second (requests_per_second_max)",
                retry_after_seconds=math.ceil((1 - left) / self._per_second),
            )


@lru_cache(maxsize=1024)
def place_of(host: str) -> str:
    """The client that an address stands for. The owner of an IPv6 address usually has all 2^64 addresses with its
    prefix.
    """
    address = address_in(host)
    if isinstance(address, IPv6Address):
        return str(IPv6Network((address, 64), strict=False))
    return host if address is None else str(address)


def raise_file_limit(connections: int) -> None:
    """Raise the limit on open files to what the connections need, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _SPARE_CONNECTIONS + _PARTING_CONNECTIONS + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        fields = {"files": allowed, "connections_max": connections}
        logger.warning("file_limit_low", extra={"action": "file_limit_low", **fields})


def _room_for_files() -> int:
    """For how many connections the limit on open files has room."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 2**31
    return max(soft - _SPARE_CONNECTIONS - _PARTING_CONNECTIONS - _OTHER_FILES, soft // 2)
