"""How the function of a step is called, and the options of stateful steps; checked when the step is defined."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from lockstep.errors import InvalidOption

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lockstep.spark.pipelines.pipeline import Step

OutputMode = Literal["append", "update", "complete"]

_ONLY_STATEFUL: Mapping[str, Any] = {"output_mode": "append", "order_by": (), "state_partitions": None}
"""Options for stateful steps only, and their defaults."""
_ONLY_STATELESS: Mapping[str, Any] = {
    "group": None,
    "per_batch": False,
    "order": True,
    "traces": True,
    "rejects_max": 5_000,
}
_BECAUSE = {
    "group": "a batch that runs again must read the same messages, and a shared group does not give them again",
    "per_batch": "its state is there to see more than one batch",
    "order": "its rows are in order by order_by, or by seq where its function returns that",
    "traces": "trace_id is carried where its function returns it",
    "rejects_max": "no message is looked for on which its function raises",
}


def name_sources(source: Any, *, stateful: bool) -> tuple[str, ...]:
    """The parameters for sources that are passed separately. A stateless step gets the messages of all sources in one
    frame, and a single source is the first parameter."""
    if isinstance(source, Mapping):
        if not stateful:
            raise InvalidOption(
                "sources have names in stateful steps only (stateful=True): a stateless step gets the messages of all "
                "of its sources in one DataFrame, with a column queue"
            )
        return _checked_parameters(list(source))
    if not stateful or isinstance(source, str) or not isinstance(source, Sequence) or len(source) < 2:
        return ()
    return _checked_parameters([re.sub(r"\W", "_", str(queue)) for queue in source])


def _checked_parameters(names: Sequence[Any]) -> tuple[str, ...]:
    for name in names:
        if not isinstance(name, str) or not name.isidentifier():
            raise InvalidOption(
                f"a source cannot be the parameter {name!r}: give it a name, source={{'orders': 'order-intake'}}"
            )
    if len(set(names)) < len(names):
        raise InvalidOption(
            f"two sources would be one parameter, {', '.join(names)}: name them, source={{'a': …, 'b': …}}"
        )
    return tuple(names)


def schemas_of(step: Step) -> Sequence[Any]:
    """The payload schemas of a step."""
    return list(step.payload_schema.values()) if isinstance(step.payload_schema, Mapping) else [step.payload_schema]


def check_state(step: Step) -> None:
    """Raises InvalidOption for options that exclude each other, or if the function cannot be called."""
    if step.stateful:
        _check_stateful(step)
    else:
        given = [name for name, otherwise in _ONLY_STATEFUL.items() if getattr(step, name) != otherwise]
        if given:
            raise InvalidOption(f"step {step.name!r}: {given[0]} is for stateful steps (stateful=True)")
    if isinstance(step.payload_schema, Mapping):
        unknown = [name for name in step.payload_schema if name not in step.source_names]
        if unknown:
            names = ", ".join(step.source_names) or "none that have a name"
            raise InvalidOption(f"step {step.name!r}: payload_schema is for {unknown[0]!r}; its sources are {names}")
    _check_inputs(step)
    _check_call(step)


def _check_stateful(step: Step) -> None:
    for name, otherwise in _ONLY_STATELESS.items():
        if getattr(step, name) != otherwise:
            raise InvalidOption(f"step {step.name!r} is stateful, and cannot have {name}: {_BECAUSE[name]}")
    if not step.sinks:
        raise InvalidOption(f"step {step.name!r} is stateful, and needs a sink for its results")
    if step.output_mode not in get_args(OutputMode):
        modes = ", ".join(get_args(OutputMode))
        raise InvalidOption(f"step {step.name!r}: output_mode is one of {modes}, not {step.output_mode!r}")
    if not all(isinstance(name, str) and name for name in step.order_by):
        raise InvalidOption(f"step {step.name!r}: order_by is a column, or several, not {step.order_by!r}")
    count = step.state_partitions
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
        raise InvalidOption(f"step {step.name!r}: state_partitions must be 1 or more, not {count!r}")


def _check_inputs(step: Step) -> None:
    from lockstep.spark.pipelines.side_inputs import EVERY_BATCH, SideInput

    for name, one in step.inputs.items():
        if not isinstance(name, str) or not name.isidentifier() or name in step.source_names:
            raise InvalidOption(f"step {step.name!r}: a side input cannot be the parameter {name!r}")
        if not isinstance(one, SideInput):
            raise InvalidOption(
                f"step {step.name!r}: the side input {name!r} is {one!r}; make one with lockstep.spark.inputs"
            )
        if step.stateful and one.refresh == EVERY_BATCH:
            raise InvalidOption(
                f"step {step.name!r} is stateful, so that its plan is made once: its side input {name!r} cannot be "
                "read for every batch; give a span such as refresh='10m', or look it up in a stateless step before it"
            )


def _check_call(step: Step) -> None:
    frames = () if step.source_names else (None,)
    try:
        signature = inspect.signature(step.function)
    except (TypeError, ValueError):  # functions in C may not reveal their parameters
        return
    try:
        signature.bind(*frames, **dict.fromkeys((*step.source_names, *step.inputs)))
    except TypeError as error:
        wanted = ", ".join((*(step.source_names or ("a DataFrame",)), *step.inputs))
        raise InvalidOption(f"step {step.name!r}: its function is called with {wanted}: {error}") from error


def call(step: Step, frames: Sequence[DataFrame], inputs: Mapping[str, DataFrame]) -> Any:
    """Call the function of a step with its sources and side inputs."""
    if step.source_names:
        return step.function(**dict(zip(step.source_names, frames, strict=True)), **inputs)
    return step.function(*frames, **inputs)
