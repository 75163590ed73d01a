"""Each call of a store is a span: it stays on one timeline of the database, and restarts if the timeline changes.

If another server takes over between two statements, an id that the first statement found may have another meaning for
the second. So the store wraps every verb of the contract in a span, and no verb can be missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from lockstep.errors import Unavailable
from lockstep.storage.postgres.context import Context
from lockstep.storage.postgres.timelines import Span, TimelineChanged, begin_span, current_span, end_span

P = ParamSpec("P")
R = TypeVar("R")

_ATTEMPTS_MAX = 10


def in_span(context: Context, verb: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    """The verb of a room, as a span."""

    @wraps(verb)
    async def spanned(*args: P.args, **named: P.kwargs) -> R:
        task, outer = asyncio.current_task(), current_span()
        if outer is not None and outer.is_open and outer.owner is context and outer.task is task:
            return await verb(*args, **named)
        for _ in range(_ATTEMPTS_MAX):
            span = Span(context, task, context.remembered())
            token = begin_span(span)
            try:
                return await verb(*args, **named)
            except TimelineChanged:
                continue
            finally:
                span.is_open = False
                end_span(token)
        raise Unavailable("one server after the other took over during the call")

    return spanned
