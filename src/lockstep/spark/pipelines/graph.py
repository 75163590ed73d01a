"""The graph of a pipeline: which step comes after which, whether they go in a circle, and how that looks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.spark.pipelines.pipeline import Step


def find_cycle(steps: Sequence[Step], start: Step) -> list[str] | None:
    """The queues along which a message could come back to the step; None if there is no such way."""

    def ways(step: Step, path: list[str], seen: set[str]) -> Iterator[list[str]]:
        # What goes to another database does not come back.
        for queue in step.sinks if step.sink_dsn_env is None else ():
            if queue in start.sources:
                yield [*path, queue]
            if queue not in seen:
                seen.add(queue)
                for after in steps:
                    if queue in after.sources:
                        yield from ways(after, [*path, queue], seen)

    return next(([cycle[-1], *cycle] for cycle in ways(start, [], set())), None)


def in_order(steps: Sequence[Step]) -> list[Step]:
    """The steps, each after those that write what it reads; where there is a cycle, in the order of definition."""
    ordered: list[Step] = []
    waiting = list(steps)
    while waiting:
        written = {queue for step in waiting for queue in step.sinks if not step.allow_cycle}
        ready = [step for step in waiting if not written.intersection(step.sources)] or waiting[:1]
        ordered.append(ready[0])
        waiting.remove(ready[0])
    return ordered


def drawn(name: str, steps: Sequence[Step]) -> str:
    """The pipeline as text: each queue, the steps that read it, and where their rows go."""
    lines = [f"pipeline {name}", ""]
    shown: set[str] = set()
    for step in steps:
        for queue in step.sources:
            if queue not in shown:
                shown.add(queue)
                lines += [f"[{queue}]", *_readers(queue, steps)]
    ends = [queue for step in steps for queue in step.sinks if queue not in shown]
    return "\n".join([*lines, *(f"[{queue}]" for queue in dict.fromkeys(ends))])


def _readers(queue: str, steps: Sequence[Step]) -> list[str]:
    readers = [step for step in steps if queue in step.sources]
    lines = []
    for number, step in enumerate(readers, 1):
        last = number == len(readers)
        lines.append(f"  {'└' if last else '├'}─ {step.name}{_details(step)}")
        lines += [f"  {' ' if last else '│'}    {line}" for line in _targets(step)]
    return [*lines, ""]


def _targets(step: Step) -> list[str]:
    where = f" in the database of ${step.sink_dsn_env}" if step.sink_dsn_env is not None else ""
    by = ", by the column queue" if step.routed else ""
    targets = [f"──> [{queue}]{where}{by}" for queue in step.sinks] or ["──> nothing is pushed"]
    dead = "its queue" if len(step.sources) > 1 else f"[{step.sources[0]}]"
    return [*targets, f"──x dead letters of {dead}, group {step.dead_group}"]


def _details(step: Step) -> str:
    said = [
        f"shares group {step.group}" if step.group is not None else "",
        f"payload {step.payload_schema}" if step.payload_schema is not None else "",
        "" if step.order else "order not kept",
        "" if step.traces else "traces not kept",
        "deduplicates" if step.dedupe else "",
        *(f"{name}={value}" for name, value in step.options.items()),
    ]
    details = ", ".join(text for text in said if text)
    return f"  ({details})" if details else ""
