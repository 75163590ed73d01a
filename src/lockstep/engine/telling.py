"""Telling others what was done: never a reason to say that it was not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

logger = logging.getLogger("lockstep.engine")

P = ParamSpec("P")


def telling(tell: Callable[P, None]) -> Callable[P, None]:
    """A function that tells others of what is committed. If it fails, whoever asked must not hear that their request
    failed: they would make it again. Those who were not told find out by themselves, a little later."""

    @wraps(tell)
    def tell_surely(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            tell(*args, **kwargs)
        except Exception as error:
            logger.error("tell_failed", extra={"action": "tell_failed", "error": str(error)}, exc_info=error)

    return tell_surely
