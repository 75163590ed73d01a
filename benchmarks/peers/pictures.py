"""Bars for the documentation: a picture per figure, drawn from a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

FIGURES = {
    "push_100": "Messages pushed per second, calls of 100",
    "consume": "Messages consumed and acknowledged per second",
    "both": "Messages per second, pushed and consumed at once",
    "end_to_end_p50_ms": "Milliseconds from push to delivery, median",
}
OURS, OTHERS = "#0b7285", "#adb5bd"


def draw(rows: Mapping[str, Mapping[str, float]], directory: Path) -> list[Path]:
    import matplotlib as mpl

    mpl.use("svg")
    # Text stays text, and ids do not change from run to run.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "lockstep", "font.size": 11})
    from matplotlib import pyplot

    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for figure, title in FIGURES.items():
        found = {name: row[figure] for name, row in rows.items() if row.get(figure)}
        if not found:
            continue
        names = sorted(found, key=lambda name: found[name], reverse=figure.endswith("_ms"))
        plot, axes = pyplot.subplots(figsize=(8, 0.45 * len(names) + 1))
        colors = [OURS if name.startswith("Lockstep") else OTHERS for name in names]
        drawn = axes.barh(names, [found[name] for name in names], color=colors)
        axes.bar_label(drawn, fmt="{:,.1f}" if figure.endswith("_ms") else "{:,.0f}", padding=4)
        axes.set_title(title, loc="left")
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.xaxis.set_visible(False)
        axes.margins(x=0.15)
        path = directory / f"peers-{figure.removesuffix('_p50_ms').replace('_', '-')}.svg"
        plot.savefig(path, bbox_inches="tight", metadata={"Date": None})
        pyplot.close(plot)
        written.append(path)
    return written
