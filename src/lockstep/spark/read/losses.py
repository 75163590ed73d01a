"""Messages that were removed before a stream had read them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lockstep.errors import DataLost

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LossWatch:
    """How a task of a stream handles messages that were removed after they were planned."""

    since: datetime
    """When the stream started; earlier removals do not concern it."""
    fail: bool


def report_loss(lost: int, queues: Any, *, fail: bool, report: Callable[[str], None] = _log.warning) -> None:
    """Fail, or warn, if messages were removed before they were read. Raises DataLost."""
    if not lost:
        return
    text = f"{lost} messages of {', '.join(sorted(queues))} were removed before the stream had read them"
    if fail:
        raise DataLost(f"{text}; with the option failOnDataLoss=false the stream continues without them", lost=lost)
    report(text)
