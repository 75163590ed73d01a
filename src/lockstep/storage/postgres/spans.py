"""Each call of a store is a span: it keeps to one timeline of the database, and is begun again on another.

It is done for all verbs of the contract at once, so that none can be forgotten: an id that one statement finds and the
next one uses may be another thing's, if another server took over in between.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, TypeVar

from lockstep.errors import Unavailable
from lockstep.storage.base import Store
from lockstep.storage.postgres.cache import Memory
from lockstep.storage.postgres.timelines import Span, TimelineChanged, begin_span, current_span, end_span

S = TypeVar("S")
Verb = Callable[..., Awaitable[Any]]

_ATTEMPTS_MAX = 10
APART = frozenset({"open", "close", "ping", "ready", "listen"})
"""What uses nothing that is remembered."""


def in_spans(store: type[S]) -> type[S]:
    """Make a span of each verb of a store."""
    for name in verbs():
        setattr(store, name, _in_span(getattr(store, name)))
    return store


def verbs() -> list[str]:
    """The verbs of the contract that ask the database."""
    return [name for name, verb in vars(Store).items() if inspect.iscoroutinefunction(verb) and name not in APART]


def _in_span(verb: Verb) -> Verb:
    @wraps(verb)
    async def spanned(store: Any, *args: Any, **named: Any) -> Any:
        task, outer = asyncio.current_task(), current_span()
        if outer is not None and outer.owner is store and outer.task is task:
            return await verb(store, *args, **named)
        for _ in range(_ATTEMPTS_MAX):
            memory: Memory = store.remembered()
            span = Span(store, task, memory)
            token = begin_span(span)
            try:
                return await verb(store, *args, **named)
            except TimelineChanged:
                continue
            finally:
                span.is_open = False
                end_span(token)
        raise Unavailable("one server after the other took over during the call")

    return spanned
