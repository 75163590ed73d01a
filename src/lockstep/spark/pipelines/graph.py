"""The graph of a pipeline: the order of its steps, its cycles, and its drawing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.spark.pipelines.pipeline import Step


def find_cycle(steps: Sequence[Step], start: Step) -> list[str] | None:
    """The queues of a cycle through the step; None if there is none."""

    def ways(step: Step, path: list[str], seen: set[str]) -> Iterator[list[str]]:
        # Messages that go to another database do not come back.
        for queue in step.sinks if step.sink_dsn_env is None else ():
            if start.has_source(queue):
                yield [*path, queue]
            if queue not in seen:
                seen.add(queue)
                for after in steps:
                    if after.has_source(queue):
                        yield from ways(after, [*path, queue], seen)

    return next(([cycle[-1], *cycle] for cycle in ways(start, [], set())), None)


def in_order(steps: Sequence[Step]) -> list[Step]:
    """The steps, each after those that write its sources; within a cycle, in the order of definition."""
    ordered: list[Step] = []
    waiting = list(steps)
    while waiting:
        written = {queue for step in waiting for queue in step.sinks if not step.allow_cycle}
        ready = [step for step in waiting if not any(map(step.reads, written))] or waiting[:1]
        ordered.append(ready[0])
        waiting.remove(ready[0])
    return ordered


def drawn(name: str, steps: Sequence[Step]) -> str:
    """The pipeline as text: each queue, the steps that read it, and the queues that they write."""
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
    named = zip(step.source_names, step.sources, strict=False)
    sources = [f"<── {name}: stream of [{queue}]" for name, queue in named]
    sides = [f"<── {name}: {one}" for name, one in step.inputs.items()]
    dead = "its queue" if len(step.sources) > 1 or step.by_pattern else f"[{step.sources[0]}]"
    return [*sources, *sides, *targets, f"──x dead letters of {dead}, group {step.dead_group}"]


def _schemas(step: Step) -> list[str]:
    if isinstance(step.payload_schema, str):
        return [f"payload {step.payload_schema}"]
    return [f"payload of {name} {schema}" for name, schema in (step.payload_schema or {}).items()]


def _details(step: Step) -> str:
    said = [
        "" if not step.stateful else f"stateful, output mode {step.output_mode}",
        "all queues whose names fit" if step.by_pattern else "",
        "each batch by itself" if step.per_batch else "",
        f"shares group {step.group}" if step.group is not None else "",
        *_schemas(step),
        "" if step.order else "order not kept",
        "" if step.traces else "traces not kept",
        "deduplicates" if step.dedupe else "",
        *(f"{name}={value}" for name, value in step.options.items()),
    ]
    details = ", ".join(text for text in said if text)
    return f"  ({details})" if details else ""
