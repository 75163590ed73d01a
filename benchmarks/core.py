"""The core benchmark: what the engine makes of PostgreSQL, against a row per message.

    make bench                          everything; exit code 1 if a bar is missed
    make bench ARGS=--short             a quick look, for CI; missed bars are printed and no failure
    make bench ARGS="--only push-1000"  one scenario (see --help)
    make bench ARGS="--dsn postgresql://…"   on a server of yours, in databases that are dropped afterwards

How to read it:
* `plain INSERT` is the usual limit: unnested arrays into a minimal table, by prepared statements on 4 connections. That
  table is never vacuumed; ours are.
  Everything else is 4 concurrent callers of the engine, which has 4 connections, on the same server in the same run.
* `x plain` is the median of the ratios of neighbouring slices (see harness.py). Other machines, and other work on
  this machine, change msg/s a lot and the ratios little.
* `x direct` is, for HTTP, that ratio divided by the one of the engine in this process, with 10 callers.
* WAL is what the whole server wrote in a slice. Each comparison begins with a checkpoint and an unmeasured slice, so
  the whole pages that follow a checkpoint are left out, on both sides alike.
* `our CPU` is this process only: the driver, and for the engine also checks, packing and cache.
* Input is made beforehand for both sides; what is delivered by a pop has been taken out of it as a list of payloads.
* Bars are what the project has promised itself; they are also in results/core.json.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable

import uvloop

from benchmarks import harness
from benchmarks.harness import Outcome, progress
from benchmarks.messages import Messages
from benchmarks.scenarios.amplification import amplification_scenario
from benchmarks.scenarios.auth import http_auth_scenario
from benchmarks.scenarios.http import (
    http_pop_scenario,
    http_push_scenario,
    idle_polls_scenario,
    lone_push_scenario,
)
from benchmarks.scenarios.latency import pop_latency
from benchmarks.scenarios.lateness import lateness
from benchmarks.scenarios.load import queueing, spike_scenario
from benchmarks.scenarios.next import http_next_scenario, next_scenario, packed_next_scenario
from benchmarks.scenarios.packed import packed_scenario
from benchmarks.scenarios.pop import pop
from benchmarks.scenarios.push import push_100, push_1000, push_more, push_small
from benchmarks.scenarios.roles import roles_scenario
from benchmarks.scenarios.setting import Setting
from benchmarks.scenarios.spending import spending
from benchmarks.scenarios.work import work
from benchmarks.servers import connected, running_server

SCENARIOS: dict[str, Callable[[Setting], Awaitable[Outcome]]] = {
    "push-small": push_small,
    "push-100": push_100,
    "push-1000": push_1000,
    "push-more": push_more,
    "pop": pop,
    "next": next_scenario,
    "pop-latency": pop_latency,
    "spending": spending,
    "work": work,
    "http-push": http_push_scenario,
    "http-pop": http_pop_scenario,
    "http-next": http_next_scenario,
    "http-next-packed": packed_next_scenario,
    "http-lone": lone_push_scenario,
    "http-packed": packed_scenario,
    "http-auth": http_auth_scenario,
    "http-amplification": amplification_scenario,
    "roles": roles_scenario,
    "http-idle": idle_polls_scenario,
    "lateness": lateness,
    "queueing": queueing,
    "load": spike_scenario,
}
RUN_SECONDS_MAX = 2400


def main() -> int:
    arguments = _arguments()
    # Ended from outside, we clean up as after Ctrl-C, also where a shell made us ignore that one.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        with running_server(arguments.dsn) as dsn, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(dsn, arguments))
    except KeyboardInterrupt:
        progress("stopped")
        return 130


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.core", description="The core benchmark of Lockstep.")
    parser.add_argument("--short", action="store_true", help="a quick look: short slices, fewer partitions")
    parser.add_argument("--only", choices=SCENARIOS, help="run this scenario alone")
    parser.add_argument("--dsn", help="PostgreSQL to use instead of an embedded one, as a URL")
    parser.add_argument("--rounds", type=int, help="slices of each side that are measured")
    parser.add_argument("--seconds", type=float, help="length of a slice")
    return parser.parse_args()


async def _run(dsn: str, arguments: argparse.Namespace) -> int:
    outcomes: dict[str, Outcome] = {}
    short: bool = arguments.short
    async with asyncio.timeout(RUN_SECONDS_MAX), connected(dsn) as server:
        environment = {**harness.environment(), "mode": "short" if short else "full", **await server.settings()}
        setting = Setting(
            server=server,
            messages=Messages(),
            rounds=arguments.rounds or (3 if short else 5),
            seconds=arguments.seconds or (0.15 if short else 1.0),
            partitions_many=100_000 if short else 1_000_000,
        )
        for name in [arguments.only] if arguments.only else SCENARIOS:
            progress(name)
            outcomes[name] = await SCENARIOS[name](setting)
    # A part of the benchmark must not take the place of the last whole result.
    result = f"core.{arguments.only}" if arguments.only else "core"
    bars = harness.report(result, outcomes, environment=environment)
    return 0 if short or all(bar.ok for bar in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
