"""A value for each option of a queue that is not its default."""

from __future__ import annotations

from typing import Any, get_args

from lockstep.core.policy import DEFAULTS, OPTION_TYPES, OPTIONS


def another(name: str, *, dead_queue: str) -> Any:
    """Another value than the default; `dead_queue` is one that exists."""
    kind, default = OPTION_TYPES[name], getattr(DEFAULTS, name)
    if kind is bool:
        return not default
    if name == "expire_seconds":  # not less than a lease
        return DEFAULTS.lease_seconds + 2
    if OPTIONS[name].range is not None:
        return default + 1
    if name == "dead_queue":
        return dead_queue
    return next(choice for choice in get_args(kind) if choice != default)


def all_others(*, dead_queue: str) -> dict[str, Any]:
    """Another value than the default for every option, which go together."""
    return {name: another(name, dead_queue=dead_queue) for name in OPTIONS}
