"""Pipelines and their steps, checked when they are defined. running.py runs them.

Neither defining nor drawing a pipeline needs Spark.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from lockstep.core.names import check_name
from lockstep.core.rights import Pattern
from lockstep.errors import Conflict, InvalidName, InvalidOption, InvalidRequest, NotFound
from lockstep.spark.options import READ_OPTIONS, ReadOptions
from lockstep.spark.pipelines.graph import find_cycle, in_order
from lockstep.spark.pipelines.parameters import OutputMode, check_state, name_sources, schemas_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lockstep.spark.pipelines.running import Progress, StepDone
    from lockstep.spark.pipelines.side_inputs import SideInput

Function = Callable[..., Any]
F = TypeVar("F", bound=Function)

STEP_OPTIONS = tuple(
    name
    for name in READ_OPTIONS
    if name
    not in (
        *(
            "dsn",
            "dsnEnv",
            "encryptionKeyEnv",
            "queue",
            "queuePattern",
            "path",
            "columns",
            "payloadSchema",
            "payloadMode",
        ),
        *("endingPosition", "mode", "group", "streamName"),
    )
)
"""Source options that a step may set; the pipeline sets the others."""

BATCH_MESSAGES = 100_000
REJECTS_MAX = 5_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


@dataclass(frozen=True, kw_only=True)
class Step:
    """A function between queues."""

    pipeline: str
    name: str
    function: Function
    sources: tuple[str, ...]
    """The queues that it reads; or, for a name pattern, only the pattern."""
    by_pattern: bool = False
    sinks: tuple[str, ...] = ()
    """Where its rows go; empty: it has no sink."""
    routed: bool = False
    """Whether a column `queue` selects the sink of a row."""
    payload_schema: str | Mapping[str, str] | None = None
    """One schema for all sources; or, in a stateful step, schemas by the name of the source."""
    group: str | None = None
    """The consumer group that it shares with ordinary consumers."""
    stateful: bool = False
    """Whether its function is called once, with streams, and Spark keeps state between batches."""
    per_batch: bool = False
    """Whether it intentionally processes several rows of a batch together."""
    source_names: tuple[str, ...] = ()
    """The parameters for its sources, if each source has one."""
    inputs: Mapping[str, SideInput] = field(default_factory=dict)
    """Its side inputs, by the name of the parameter."""
    output_mode: OutputMode = "append"
    order_by: tuple[str, ...] = ()
    """Columns that order the rows of a partition within a batch of a stateful step."""
    state_partitions: int | None = None
    order: bool = True
    traces: bool = True
    dedupe: bool = False
    rejects_max: int = REJECTS_MAX
    allow_cycle: bool = False
    sink_dsn_env: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def full_name(self) -> str:
        """The name of its stream."""
        return f"{self.pipeline}.{self.name}"

    @property
    def dead_group(self) -> str:
        """The group of its dead letters: the group that it shares, or a group of its own name."""
        return self.group or self.full_name

    @property
    def read_queues(self) -> tuple[str, ...]:
        """Its named sources and the queues of its side inputs."""
        looked_up = [one.queue for one in self.inputs.values() if one.queue is not None]
        return tuple(dict.fromkeys([*(() if self.by_pattern else self.sources), *looked_up]))

    def has_source(self, queue: str) -> bool:
        return Pattern(self.sources[0]).matches(queue) if self.by_pattern else queue in self.sources

    def reads(self, queue: str) -> bool:
        """Whether the queue is a source or a side input."""
        return self.has_source(queue) or queue in self.read_queues

    def payload_schema_of(self, source: str | None) -> str | None:
        """The payload schema of a source; None: of all sources."""
        if not isinstance(self.payload_schema, Mapping):
            return self.payload_schema
        by_queue = dict(zip(self.sources, self.source_names, strict=True))
        return None if source is None else self.payload_schema.get(by_queue[source])

    def source_options(self, source: str | None = None, *, where: Mapping[str, str] | None = None) -> dict[str, str]:
        """The read options of its stream or of one of its sources, except for those of the database. `where` is the
        start, if it differs from the step's own options."""
        import msgspec

        again = {name.lower() for name in where or {}}
        own = {name: value for name, value in self.options.items() if name.lower() not in again}
        given = {"maxMessagesPerTrigger": str(BATCH_MESSAGES), **own, **(where or {})}
        if self.by_pattern:
            given["queuePattern"] = self.sources[0]
        else:
            given["queue"] = msgspec.json.encode(self.sources if source is None else [source]).decode()
        given["streamName"] = self.full_name
        if self.group is not None:
            given |= {"mode": "lease", "group": self.group}
        schema = self.payload_schema_of(source)
        if schema is not None:
            given |= {"payloadSchema": schema, "payloadMode": "permissive"}
        return given


class Pipeline:
    """Steps from queue to queue."""

    def __init__(self, name: str) -> None:
        self.name = _checked_name(name, "the name of a pipeline")
        self._steps: dict[str, Step] = {}

    @property
    def steps(self) -> tuple[Step, ...]:
        """In the order of definition."""
        return tuple(self._steps.values())

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r}, steps: {', '.join(self._steps) or 'none'})"

    def step(
        self,
        *,
        source: str | Sequence[str] | Mapping[str, str] | None = None,
        source_pattern: str | None = None,
        sink: str | Sequence[str] | None,
        name: str | None = None,
        payload_schema: str | Mapping[str, str] | None = None,
        group: str | None = None,
        stateful: bool = False,
        per_batch: bool = False,
        inputs: Mapping[str, SideInput] | None = None,
        output_mode: OutputMode = "append",
        order_by: str | Sequence[str] = (),
        state_partitions: int | None = None,
        order: bool = True,
        traces: bool = True,
        dedupe: bool = False,
        rejects_max: int = REJECTS_MAX,
        allow_cycle: bool = False,
        sink_dsn_env: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Callable[[F], F]:
        """Make a function from DataFrame to DataFrame a step.

        Its source is a queue or several, or all existing and future queues whose names match `source_pattern`, in which
        `*` stands for any text. `sink` is a queue; or several, of which a column `queue` selects one; or None, and
        nothing is pushed. The function of a stateful step with several sources gets a DataFrame for each, by name; side
        inputs are passed by name as well. Raises InvalidName, InvalidOption, and Conflict if a step with this name
        exists.
        """

        def define(function: F) -> F:
            self._add(
                Step(
                    pipeline=self.name,
                    name=_checked_name(name or str(getattr(function, "__name__", "")), "the name of a step"),
                    function=_checked_function(function),
                    sources=_sources(source, source_pattern),
                    by_pattern=source_pattern is not None,
                    source_names=name_sources(source, stateful=stateful),
                    sinks=() if sink is None else _queues(sink, "sink"),
                    routed=sink is not None and not isinstance(sink, str),
                    payload_schema=payload_schema,
                    group=group,
                    stateful=stateful,
                    per_batch=per_batch,
                    inputs=dict(inputs or {}),
                    output_mode=output_mode,
                    order_by=(order_by,) if isinstance(order_by, str) else tuple(order_by),
                    state_partitions=state_partitions,
                    order=order,
                    traces=traces,
                    dedupe=dedupe,
                    rejects_max=rejects_max,
                    allow_cycle=allow_cycle,
                    sink_dsn_env=sink_dsn_env,
                    options={key: _text(value) for key, value in (options or {}).items()},
                )
            )
            return function

        return define

    def _add(self, step: Step) -> None:
        if step.name in self._steps:
            raise Conflict(f"the pipeline {self.name!r} has a step {step.name!r} already")
        _check_options(step)
        if not step.allow_cycle:
            cycle = find_cycle([*self._steps.values(), step], step)
            if cycle is not None:
                raise InvalidOption(
                    f"step {step.name!r} closes a cycle, {' -> '.join(cycle)}: a message could go round for ever; if "
                    "it is meant, say allow_cycle=True"
                )
        self._steps[step.name] = step

    def chosen(self, names: Sequence[str] | None = None) -> list[Step]:
        """The steps with these names, or all; steps that write a queue come before those that read it. Raises NotFound,
        and InvalidRequest if there is none."""
        if not self._steps:
            raise InvalidRequest(f"the pipeline {self.name!r} has no steps")
        for name in names or ():
            if name not in self._steps:
                raise NotFound(
                    f"the pipeline {self.name!r} has no step {name!r}; it has {', '.join(self._steps)}", step=name
                )
        return [step for step in in_order(self.steps) if not names or step.name in names]

    def draw(self) -> str:
        """The pipeline as text."""
        from lockstep.spark.pipelines.graph import drawn

        return drawn(self.name, self.chosen())

    def run(
        self,
        spark: SparkSession | None = None,
        *,
        once: bool = False,
        steps: Sequence[str] | None = None,
        dsn: str | None = None,
        dsn_env: str | None = None,
        checkpoints: str | None = None,
        trigger: str = "1s",
        restart_from: str | None = None,
        progress: Progress | None = None,
        stop: threading.Event | None = None,
    ) -> list[StepDone]:
        """Run the steps until `stop` is set, or until Ctrl-C or SIGTERM; with `once`, until all existing messages are
        done.

        Without a session it uses the active one, or creates one, as `spark-submit` requires. Raises StepFailed, and
        CheckpointElsewhere unless `restart_from` (earliest, latest, position) says where to start.
        """
        from lockstep.spark.database import Access
        from lockstep.spark.pipelines.running import RunOptions, run

        options = RunOptions(
            access=Access(dsn=dsn, dsn_env=dsn_env),
            once=once,
            checkpoints=checkpoints,
            trigger=trigger,
            restart_from=restart_from,
        )
        return run(self, options, spark=spark, steps=steps, progress=progress, stop=stop)

    def main(self, arguments: Sequence[str] | None = None) -> None:
        """Run it with the arguments of the command line: for a file started by `spark-submit`."""
        from lockstep.spark.pipelines.running import main

        main(self, arguments)


def _checked_name(name: str, what: str) -> str:
    """Names of pipelines and steps become parts of paths and of group names."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidName(
            f"{what} must be 1 to 100 letters, digits, - and _, and begin with a letter or digit; not {name!r}"
        )
    return name


def _checked_function(function: Any) -> Any:
    if not callable(function):
        raise InvalidOption(f"a step is a function from DataFrame to DataFrame, not {function!r}")
    return function


def _queues(given: str | Sequence[str] | Mapping[str, str], what: str) -> tuple[str, ...]:
    if not isinstance(given, str | Sequence) and not (isinstance(given, Mapping) and what == "source"):
        raise InvalidOption(f"the {what} of a step is a queue, or several, not {given!r}")
    queues = (given,) if isinstance(given, str) else tuple(given.values() if isinstance(given, Mapping) else given)
    if not queues:
        raise InvalidOption(f"the {what} of a step is a queue, or several; none is named")
    for queue in queues:
        check_name(queue, what=f"the {what} of a step")
    if len(set(queues)) < len(queues):
        raise InvalidOption(f"the {what} of a step names a queue twice: {', '.join(queues)}")
    return queues


def _sources(source: str | Sequence[str] | Mapping[str, str] | None, pattern: str | None) -> tuple[str, ...]:
    if (source is None) == (pattern is None):
        raise InvalidOption("a step has a source, or a source_pattern")
    if source is not None:
        return _queues(source, "source")
    return (check_name(pattern, what="the source_pattern of a step"),)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_options(step: Step) -> None:
    texts = {"payload_schema": schemas_of(step), "group": [step.group], "sink_dsn_env": [step.sink_dsn_env]}
    for name, values in texts.items():
        for value in values:
            if value is not None and not isinstance(value, str):
                raise InvalidOption(f"step {step.name!r}: {name} must be text, not {value!r}")
    known = {name.lower() for name in STEP_OPTIONS}
    unknown = [name for name in step.options if name.lower() not in known]
    if unknown:
        raise InvalidOption(
            f"step {step.name!r} has an unknown option {', '.join(unknown)}; known are {', '.join(STEP_OPTIONS)}",
            unknown=unknown,
        )
    if not isinstance(step.rejects_max, int) or isinstance(step.rejects_max, bool) or step.rejects_max < 0:
        raise InvalidOption(f"step {step.name!r}: rejects_max must be 0 or more, not {step.rejects_max!r}")
    if not step.sinks and step.sink_dsn_env is not None:
        raise InvalidOption(f"step {step.name!r} has no sink, so that sink_dsn_env means nothing")
    if step.group is not None and step.sink_dsn_env is not None:
        raise InvalidOption(
            f"step {step.name!r}: a step with a group acks what it has read with what it writes, so that both are in "
            "one database: it cannot have a sink_dsn_env"
        )
    check_state(step)
    try:
        for source in step.sources if step.source_names else (None,):
            ReadOptions.of(step.source_options(source))
    except InvalidRequest as error:
        raise InvalidOption(f"step {step.name!r}: {error.message}") from error


def frame_of(result: Any, step: Step) -> DataFrame | None:
    """The DataFrame returned by a step's function. Raises InvalidRequest for anything else."""
    from pyspark.sql import DataFrame

    if result is None and not step.sinks:
        return None
    if not isinstance(result, DataFrame):
        raise InvalidRequest(f"its function returned {type(result).__name__}, and not a DataFrame")
    return result
