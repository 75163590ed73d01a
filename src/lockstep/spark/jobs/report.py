"""The statistics as an HTML page: tables and plots in one self-contained file, in light and dark."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from io import StringIO
from string import Template
from typing import Any

import msgspec
import psycopg
from matplotlib import dates, rc_context, ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lockstep.spark.jobs.stats import MEASURES, WHOLE_QUEUE

QUEUES_DRAWN_MAX = 12
"""Only the busiest queues are drawn; the table has all of them."""
GROUPS_DRAWN_MAX = 6

_WINDOWS = f"""
select queue, group_name, window_start, {", ".join(MEASURES)} from lockstep.stat_window
where window_seconds = %s and window_start >= %s and window_start < %s
  and (%s::text[] is null or queue = any (%s::text[]))
order by queue, group_name, window_start
"""

_HEADROOM = 1.35
"""How much higher a plot is than its lines, so that the legend does not cover them."""

# Plots are drawn in placeholder colours, which are replaced by those of the page and thereby follow the reader's theme.
_INK, _GRID = "#0a0b10", "#0a0b11"
_LINES = tuple(f"#0a0b2{number}" for number in range(GROUPS_DRAWN_MAX))
_COLOURS = {_INK: "var(--ink)", _GRID: "var(--line)", **{line: f"var(--c{i})" for i, line in enumerate(_LINES)}}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "lockstep",
    "text.parse_math": False,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _GRID,
    "axes.titlecolor": _INK,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _GRID,
    "grid.linewidth": 0.6,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}


class StatWindow(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a queue, or of one of its groups, within a window."""

    queue: str
    group_name: str
    window_start: datetime
    pushed: int | None = None
    completed: int | None = None
    dead: int | None = None
    pending: int | None = None
    lag_seconds: float | None = None
    attempts_max: int | None = None
    latency_samples: int | None = None
    latency_seconds_p50: float | None = None
    latency_seconds_p95: float | None = None
    latency_seconds_max: float | None = None
    trace_samples: int | None = None
    trace_seconds_p50: float | None = None
    trace_seconds_p95: float | None = None
    trace_seconds_max: float | None = None


@dataclass(frozen=True)
class ReportSpan:
    """The scope of a report."""

    from_at: datetime
    to_at: datetime
    window_seconds: int


def read_windows(
    connection: psycopg.Connection[Any], span: ReportSpan, queues: Sequence[str] | None = None
) -> list[StatWindow]:
    named = None if queues is None else list(queues)
    rows = connection.execute(_WINDOWS, (span.window_seconds, span.from_at, span.to_at, named, named))
    return [StatWindow(**dict(zip(StatWindow.__struct_fields__, row, strict=True))) for row in rows]


def render(windows: Sequence[StatWindow], span: ReportSpan, *, title: str = "Lockstep statistics") -> str:
    """The whole page."""
    page = Template((files(__package__) / "report.html").read_text(encoding="utf-8"))
    queues = _by_queue(windows)
    busiest = sorted(queues, key=lambda name: (-queues[name].total("pushed"), name))
    parts = [_head(title, span), _tiles(list(queues.values()))]
    if not queues:
        parts.append("<p>Nothing is known of this time.</p>")
    else:
        parts.append(_table([queues[name] for name in busiest], span))
        parts += [_drawn(queues[name], span, place) for place, name in enumerate(busiest[:QUEUES_DRAWN_MAX])]
        if len(busiest) > QUEUES_DRAWN_MAX:
            parts.append(f"<p>Plots of the {QUEUES_DRAWN_MAX} busiest of {len(busiest)} queues.</p>")
    return page.substitute(title=escape(title), body="\n".join(parts))


@dataclass(frozen=True)
class _QueueCharts:
    name: str
    whole: Sequence[StatWindow]
    groups: Mapping[str, Sequence[StatWindow]]

    def total(self, measure: str) -> int:
        return sum(getattr(window, measure) or 0 for window in self.whole)

    def has_some(self, measures: Sequence[str]) -> bool:
        """Whether there is anything to draw: a non-zero value of the queue or of one of its groups."""
        windows = (window for several in (self.whole, *self.groups.values()) for window in several)
        return any(getattr(window, measure) for window in windows for measure in measures)

    def most(self, measure: str) -> float | None:
        """The maximum over the queue and its groups."""
        every = [*self.whole, *(window for windows in self.groups.values() for window in windows)]
        return max((v for window in every if (v := getattr(window, measure)) is not None), default=None)


def _by_queue(windows: Iterable[StatWindow]) -> dict[str, _QueueCharts]:
    found: dict[str, dict[str, list[StatWindow]]] = {}
    for window in windows:
        found.setdefault(window.queue, {}).setdefault(window.group_name, []).append(window)
    return {name: _QueueCharts(name, groups.pop(WHOLE_QUEUE, []), groups) for name, groups in found.items()}


def _head(title: str, span: ReportSpan) -> str:
    times = f"{_time(span.from_at)} to {_time(span.to_at)}, in windows of {_duration(span.window_seconds)}"
    return f"<h1>{escape(title)}</h1><p>{times}. Times are UTC.</p>"


def _tiles(queues: Sequence[_QueueCharts]) -> str:
    worst = max((v for queue in queues if (v := queue.most("latency_seconds_p95")) is not None), default=None)
    shown = {
        "pushed": _number(sum(queue.total("pushed") for queue in queues)),
        "completed": _number(sum(queue.total("completed") for queue in queues)),
        "dead letters": _number(sum(queue.total("dead") for queue in queues)),
        "queues": _number(len(queues)),
        "worst p95 latency": _duration(worst),
    }
    tiles = "".join(f'<div class="tile"><b>{value}</b><span>{name}</span></div>' for name, value in shown.items())
    return f'<div class="tiles">{tiles}</div>'


_HEADINGS = (
    "queue",
    "pushed",
    "per second",
    "completed",
    "dead",
    "most pending",
    "longest lag",
    "p95 latency",
    "p95 trace",
)


def _table(queues: Sequence[_QueueCharts], span: ReportSpan) -> str:
    seconds = max((span.to_at - span.from_at).total_seconds(), 1)
    lines = []
    for queue in queues:
        cells = (
            _number(queue.total("pushed")),
            f"{queue.total('pushed') / seconds:,.1f}",
            _number(queue.total("completed")),
            _number(queue.total("dead")),
            _number(queue.most("pending")),
            _duration(queue.most("lag_seconds")),
            _duration(queue.most("latency_seconds_p95")),
            _duration(queue.most("trace_seconds_p95")),
        )
        numbers = "".join(f"<td>{cell}</td>" for cell in cells)
        lines.append(f'<tr><td class="name">{escape(queue.name)}</td>{numbers}</tr>')
    headings = "".join(f"<th>{heading}</th>" for heading in _HEADINGS)
    return f'<h2>Queues</h2><div class="wide"><table><tr>{headings}</tr>{"".join(lines)}</table></div>'


def _drawn(queue: _QueueCharts, span: ReportSpan, place: int) -> str:
    drawn = [draw for draw, measures in _PLOTS if queue.has_some(measures)]
    pictures = [_own_ids(_svg(draw, queue, span), f"p{place}-{number}-") for number, draw in enumerate(drawn)]
    figures = "".join(f"<figure>{picture}</figure>" for picture in pictures) or "<p>Nothing happened here.</p>"
    return f'<h2>{escape(queue.name)}</h2><div class="plots">{figures}</div>'


def _svg(draw: Callable[[Axes, _QueueCharts, ReportSpan], None], queue: _QueueCharts, span: ReportSpan) -> str:
    # Separate figures, without pyplot: no global state, and no display needed.
    with rc_context(_STYLE):
        figure = Figure(figsize=(5.6, 2.5), layout="constrained")
        axes = figure.subplots()
        draw(axes, queue, span)
        locator = dates.AutoDateLocator(minticks=3, maxticks=7, tz=UTC)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        formatter = dates.ConciseDateFormatter(locator, tz=UTC)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_formatter(formatter)
        axes.set_xlim(span.from_at, span.to_at)  # type: ignore[arg-type]
        axes.set_ylim(bottom=0)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="upper left", ncols=2)
            axes.set_ylim(top=axes.get_ylim()[1] * _HEADROOM)
        text = StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return _themed(text.getvalue())


def _themed(svg: str) -> str:
    """The picture without its prologue, in the colours of the page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    return re.sub("|".join(_COLOURS), lambda found: _COLOURS[found[0]], svg)


def _own_ids(svg: str, prefix: str) -> str:
    """Make ids unique: all pictures use the same ids, but share one page."""
    named = re.compile(r"""(\bid="|\bhref="#|url\(#)""")
    return re.sub(r"<[^>]+>", lambda tag: named.sub(rf"\g<1>{prefix}", tag[0]), svg)


def _draw_throughput(axes: Axes, queue: _QueueCharts, span: ReportSpan) -> None:
    axes.set_title("Messages per second")
    for number, measure in enumerate(("pushed", "completed")):
        times, values = _series(queue.whole, measure)
        rates = [value / span.window_seconds for value in values]
        _line(axes, times, rates, number, measure)


def _draw_latency(axes: Axes, queue: _QueueCharts, span: ReportSpan) -> None:
    del span
    axes.set_title("Seconds from push to completion, p95")
    _draw_groups(axes, queue, "latency_seconds_p95")
    times, values = _series(queue.whole, "trace_seconds_p95")
    if times:
        axes.plot(times, values, color=_INK, linestyle="--", linewidth=1, label="since the trace began")  # type: ignore[arg-type]


def _draw_pending(axes: Axes, queue: _QueueCharts, span: ReportSpan) -> None:
    del span
    axes.set_title("Pending messages")
    times, values = _series(queue.whole, "pending")
    if times:
        axes.fill_between(times, values, color=_LINES[0], alpha=0.15, linewidth=0)  # type: ignore[arg-type]
        _line(axes, times, values, 0, "queue")
    _draw_groups(axes, queue, "pending", first=1)


def _draw_dead(axes: Axes, queue: _QueueCharts, span: ReportSpan) -> None:
    axes.set_title("Dead letters")
    axes.yaxis.set_major_locator(ticker.MaxNLocator(nbins=5, integer=True))
    width = span.window_seconds / 86_400 * 0.8
    times, values = _series(queue.whole, "dead")
    axes.bar(times, values, width=width, align="edge", color=_LINES[1])  # type: ignore[arg-type]


_PLOTS = (
    (_draw_throughput, ("pushed", "completed")),
    (_draw_latency, ("latency_seconds_p95", "trace_seconds_p95")),
    (_draw_pending, ("pending",)),
    (_draw_dead, ("dead",)),
)
"""The plots and their measures; a plot without data is left out."""


def _draw_groups(axes: Axes, queue: _QueueCharts, measure: str, *, first: int = 0) -> None:
    for number, (name, windows) in enumerate(list(queue.groups.items())[: GROUPS_DRAWN_MAX - first], start=first):
        times, values = _series(windows, measure)
        if times:
            _line(axes, times, values, number, name)


def _line(axes: Axes, times: Sequence[datetime], values: Sequence[float], number: int, label: str) -> None:
    marker = "o" if len(times) < 3 else None
    # matplotlib hides labels that begin with an underscore.
    shown = f" {label}" if label.startswith("_") else label
    axes.plot(times, values, color=_LINES[number], linewidth=1.4, marker=marker, markersize=3, label=shown)  # type: ignore[arg-type]


def _series(windows: Sequence[StatWindow], measure: str) -> tuple[list[datetime], list[float]]:
    """Times and values of the windows that have the measure."""
    known = [(window.window_start, value) for window in windows if (value := getattr(window, measure)) is not None]
    return [time for time, _ in known], [value for _, value in known]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:,.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def _time(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M}"
