"""Event streams for pages: figures are sent again whenever they change.

A page names the GET routes whose answers it shows. Each route is requested at an interval, once for all pages that
watch it, so that ten thousand open pages cost the database as much as one. Slow routes are requested less often.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import Context

import msgspec

from lockstep.core.rights import Rights
from lockstep.core.wire.events import watched_event
from lockstep.errors import Overloaded, Unauthorized
from lockstep.server.auth.callers import Caller
from lockstep.server.exchange import Response
from lockstep.server.watching import WatchedRoutes

_ALIVE_SECONDS = 15.0
"""Proxies and clients consider a connection dead that is silent for longer."""
_REST = 10
"""The pause after an answer is at least this many times the duration of the answer."""


_Key = tuple[str, Rights]


class Live:
    """The streams of a process and their watched paths."""

    def __init__(self, routes: WatchedRoutes, *, interval_seconds: float, streams_max: int) -> None:
        self._routes = routes
        self._interval_seconds = interval_seconds
        self._streams_max = streams_max
        self._watched: dict[_Key, _Watched] = {}
        """A path is requested once for all callers with the same rights; answers for other callers may differ."""
        self._versions = itertools.count(1)
        self._boot = os.urandom(4).hex()
        self.streams = 0

    def events(self, paths: Sequence[str], caller: Caller, *, last_id: str | None) -> AsyncGenerator[bytes]:
        """The answers to the paths, repeated whenever one changes, for as long as the caller is valid. Answers that the
        client has seen, up to the event `last_id`, are not repeated. Raises Overloaded, NoSuchRoute, InvalidRequest,
        Forbidden."""
        for path in paths:
            self._routes.check(path, caller)
        if self.streams >= self._streams_max:
            raise Overloaded(f"{self.streams} event streams are open (events_streams_max)")
        return self._events(paths, caller, last_id)

    async def _events(self, paths: Sequence[str], caller: Caller, last_id: str | None) -> AsyncGenerator[bytes]:
        seen = dict.fromkeys(paths, self._seen(last_id))
        news = asyncio.Event()
        with self._watching(paths, caller, news) as watched, suppress(Unauthorized):
            yield b"retry: 1000\n\n"
            while True:
                await self._routes.check_caller(caller)
                news.clear()
                for one in watched:
                    if one.version > seen[one.path]:
                        seen[one.path] = one.version
                        yield b"id: %b-%d\n%b" % (self._boot.encode(), one.version, one.event)
                try:
                    async with asyncio.timeout(_ALIVE_SECONDS):
                        await news.wait()
                except TimeoutError:
                    yield b": nothing changed\n\n"

    def _seen(self, last_id: str | None) -> int:
        """The version in an id of this process; 0 for any other id."""
        boot, _, version = (last_id or "").partition("-")
        return int(version) if boot == self._boot and version.isdecimal() and len(version) < 20 else 0

    @contextmanager
    def _watching(self, paths: Sequence[str], caller: Caller, news: asyncio.Event) -> Iterator[list[_Watched]]:
        watched = [self._watch((path, caller.rights), caller, news) for path in paths]
        self.streams += 1
        try:
            yield watched
        finally:
            self.streams -= 1
            for one in watched:
                self._leave(one, news)

    def _watch(self, key: _Key, caller: Caller, news: asyncio.Event) -> _Watched:
        known = self._watched.get(key)
        if known is None:
            known = self._watched[key] = _Watched(key)
            known.task = asyncio.create_task(self._keep(known, caller), name=f"watch {known.path}", context=Context())
        known.readers.append(news)
        return known

    def _leave(self, watched: _Watched, news: asyncio.Event) -> None:
        watched.readers.remove(news)
        if not watched.readers:
            del self._watched[watched.key]
            if watched.task is not None:
                watched.task.cancel()

    async def _keep(self, watched: _Watched, caller: Caller) -> None:
        while True:
            began = time.monotonic()
            response = await self._routes.ask(watched.path, caller)
            took = time.monotonic() - began
            watched.put(response, self._versions)
            await asyncio.sleep(max(self._interval_seconds, took * _REST))


class _Watched:
    """A watched path and its last answer."""

    def __init__(self, key: _Key) -> None:
        self.key = key
        self.path = key[0]
        self.version = 0
        self.event = b""
        self.readers: list[asyncio.Event] = []
        self.task: asyncio.Task[None] | None = None

    def put(self, response: Response, versions: Iterator[int]) -> None:
        event = b"event: answer\ndata: %b\n\n" % msgspec.json.encode(
            watched_event(self.path, response.status, response.body)
        )
        if event != self.event:
            self.event = event
            self.version = next(versions)
            for reader in self.readers:
                reader.set()
