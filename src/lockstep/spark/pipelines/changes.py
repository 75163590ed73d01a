"""What has changed in the definition of a step since its last run, and the consequences; reported when the step
starts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from types import CodeType
from typing import Any

import msgspec

from lockstep.spark.pipelines.pipeline import Step

_MEANING = {
    "code": "its function: the next batch is the first that the new one does",
    "payload_schema": "payload_schema: what did not fit before stays a dead letter, which a redrive brings back",
    "sinks": "sink: what was written before stays where it is",
    "options": "options: they hold from the next batch on",
    "group": "group: from now on it goes on where that group is",
    "added": "a queue more, {}: it is read from the first message that comes after what the step has read",
    "removed": "a queue less, {}: what the step has not read of it is no longer held",
}
"""The message for each kind of change."""


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a step that its checkpoint does not record."""

    code: str
    sources: list[str]
    sinks: list[str]
    group: str | None
    payload_schema: Any
    options: Mapping[str, str]


def definition_of(step: Step) -> Definition:
    return Definition(
        code=_digest(step.function),
        sources=sorted(step.sources),
        sinks=sorted(step.sinks),
        group=step.group,
        payload_schema=step.payload_schema,
        options=dict(step.options),
    )


def changes(before: Definition, after: Definition) -> list[str]:
    """The messages to report."""
    said = [
        _MEANING[name]
        for name in ("code", "payload_schema", "sinks", "options", "group")
        if getattr(before, name) != getattr(after, name)
    ]
    for name, queues in (
        ("added", set(after.sources) - set(before.sources)),
        ("removed", set(before.sources) - set(after.sources)),
    ):
        if queues:
            said.append(_MEANING[name].format(", ".join(sorted(queues))))
    return said


def _digest(function: Callable[..., Any]) -> str:
    """A digest of the function's own code, independent of its line numbers. Functions that it calls are not
    included.
    """
    code = getattr(function, "__code__", None)
    parts = _parts(code) if isinstance(code, CodeType) else [repr(type(function)).encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _parts(code: CodeType) -> Iterator[bytes]:
    yield code.co_code
    yield repr(code.co_names).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _parts(constant)
        else:
            yield repr(constant).encode()
