"""Analyses the plan of a DataFrame: which of its operators need more rows than one micro-batch has.

A stateless step sees one micro-batch at a time. An operator that compares or counts rows would consider only that
batch, and its result would depend on how messages are grouped into batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MARK = "lockstep_batch"
"""The alias that identifies the rows of a batch in the result of a function."""

OPERATORS = {
    "Aggregate": "an aggregation (groupBy, agg, count)",
    "Distinct": "distinct",
    "Deduplicate": "dropDuplicates",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark",
    "Window": "a window function (over)",
    "WindowInPandas": "a window function (over)",
    "ArrowWindowPython": "a window function (over)",
    "GlobalLimit": "limit",
    "Tail": "tail",
    "Offset": "offset",
    "Intersect": "intersect",
    "Except": "subtract",
    "FlatMapGroupsInPandas": "groupBy().applyInPandas",
    "FlatMapGroupsInArrow": "groupBy().applyInArrow",
    "FlatMapCoGroupsInPandas": "cogroup().applyInPandas",
    "FlatMapCoGroupsInArrow": "cogroup().applyInArrow",
    "FlatMapGroupsWithState": "flatMapGroupsWithState",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState",
    "TransformWithState": "transformWithState",
    "TransformWithStateInPySpark": "transformWithState",
}
"""Operators that look at several input rows, as users write them."""

ROW_BY_ROW = ("Project", "Filter", "Generate", "SubqueryAlias", "CollectMetrics", "ResolvedHint", "LogicalRDD")
"""Operators that leave rows where they are: each task has what it read, in the order in which it read it."""

JOIN = "a join of the stream with itself"
_JOINS = ("Join", "AsOfJoin", "LateralJoin")


def operators_over_batch(frame: DataFrame) -> list[str]:
    """Operators that look at several rows of the batch marked with `MARK`, outermost first."""
    return _operators(frame, _is_marked)


def operators_over_stream(frame: DataFrame) -> list[str]:
    """Stateful operators, outermost first."""
    return _operators(frame, lambda node: bool(node.isStreaming()) and not list(_inputs(node)))


def leaves_in_place(frame: DataFrame, column: str) -> bool:
    """Whether rows stay in the task and in the order in which the batch that is marked with `MARK` was read, with a
    column as it was read. What takes the rows to other tasks, or may, is not known to."""
    nodes = list(_nodes(_plan(frame)))
    if any(node.nodeName() not in ROW_BY_ROW for node in nodes):
        return False
    made = _attributes(nodes[0], column)
    return len(made) == 1 and any(made[0] in _attributes(node, column) for node in nodes if _is_marked(node))


def _attributes(node: Any, name: str) -> list[str]:
    """The columns of this name, with their ids, such as `seq#12L`. As one text: to ask Java for each takes its time."""
    return [one for one in node.output().mkString(",").split(",") if one.startswith(f"{name}#")]


def times_read(frame: DataFrame) -> list[int]:
    """How often the plan of a stream names each of its sources, in the order in which Spark reports them. Spark reads a
    source once per occurrence."""
    leaves = [node for node in _nodes(_plan(frame)) if node.isStreaming() and not list(_inputs(node))]
    return list(Counter(leaf.table().toString() for leaf in leaves).values())


def _operators(frame: DataFrame, is_source: Callable[[Any], bool]) -> list[str]:
    found: list[str] = []
    _walk(_plan(frame), is_source, found)
    return list(dict.fromkeys(found))


def _plan(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def _walk(node: Any, is_source: Callable[[Any], bool], found: list[str]) -> bool:
    """Whether rows of the source pass through the node. Records what the node does with them."""
    if is_source(node):
        return True
    place = len(found)
    fed = sum([_walk(one, is_source, found) for one in _inputs(node)])
    name = node.nodeName()
    if fed and name in OPERATORS:
        found.insert(place, OPERATORS[name])
    elif fed > 1 and name in _JOINS:
        found.insert(place, JOIN)
    return fed > 0


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for one in _inputs(node):
        yield from _nodes(one)


def _inputs(node: Any) -> Iterator[Any]:
    """The plans that a node reads, including those within its expressions."""
    for plans in (node.children(), node.subqueries()):
        for place in range(plans.size()):
            yield plans.apply(place)


def _is_marked(node: Any) -> bool:
    return bool(node.nodeName() == "SubqueryAlias" and node.identifier().name() == MARK)
