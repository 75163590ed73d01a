"""How many random examples a test tries: a few in each run, other ones each time, and many in `make soak`.

The seed of a run is that of its random order; `make test ARGS="--randomly-seed=<seed>"` repeats both.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings

SOAK = bool(os.environ.get("LOCKSTEP_SOAK"))
TIMES = int(os.environ.get("HYPOTHESIS_TIMES", "1"))
"""So many times as many examples, to look for what is rare."""


def examples(count: int, *, soak: int, **others: Any) -> settings:
    """Settings for a test with `count` examples, or in `make soak` with `soak`."""
    return settings(
        max_examples=soak if SOAK else count * TIMES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        **others,
    )
