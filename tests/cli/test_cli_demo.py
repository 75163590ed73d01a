"""`lockstep demo`: its count finds what is missing; that it adds up is shown by running it (tests/spark)."""

from __future__ import annotations

import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from command_lines import CommandLine

from lockstep.cli.demo.checks import Counted, Ways, check
from lockstep.cli.demo.server import MARK, prepare, running_server
from lockstep.cli.demo.shop import make_orders
from lockstep.errors import InvalidOption, Unavailable
from lockstep.storage.postgres.embedded import running_dsn
from support.databases import scratch_directory
from support.until import until

QUEUES = ("order", "payment", "shipping", "shipped")
WAYS = Ways("order-intake", QUEUES, "shipping", "revenue", "delivery")
ORDERS = make_orders(200)


def counted() -> Counted:
    """As it should be."""
    fates = [order.fate for order in ORDERS]
    shipped, declined = fates.count("shipped"), fates.count("declined")
    stored = dict(zip(QUEUES, (200, shipped + declined, shipped, shipped), strict=True))
    stored |= {"order-intake": 200 + sum(order.is_repeated for order in ORDERS), "delivery": shipped, "revenue": 9}
    parcels: dict[str, list[tuple[int, str | None]]] = {}
    for order in ORDERS:
        if order.fate == "shipped":
            parcels.setdefault(order.customer, []).append((order.number, order.trace_id))
    dead = {"order": fates.count("invalid"), "payment": declined}
    return Counted(stored, dead, dict(stored), parcels, {"12:00:00": 1, "12:00:10": shipped - 1})


def wrong(found: Counted) -> list[str]:
    return [one.text for one in check(ORDERS, found, WAYS) if not one.holds]


def test_numbers_that_add_up() -> None:
    assert wrong(counted()) == []
    assert min(counted().dead.values()) > 0


def test_every_kind_of_fault_is_found() -> None:
    found = counted()
    assert len(wrong(replace(found, stored={**found.stored, "payment": 1}))) >= 2
    assert len(wrong(replace(found, stored={**found.stored, "order-intake": 199}))) >= 1
    assert len(wrong(replace(found, stored={**found.stored, "order": 207}))) >= 2
    assert len(wrong(replace(found, stored={**found.stored, "delivery": 1}))) >= 1
    assert len(wrong(replace(found, windows={"12:00:00": 3}))) == 1
    assert len(wrong(replace(found, dead={**found.dead, "payment": 0}))) == 2
    assert len(wrong(replace(found, archived={**found.archived, "shipped": 0}))) == 1
    customer, parcels = next((name, list(some)) for name, some in found.parcels.items() if len(some) > 1)
    swapped = [parcels[1], parcels[0], *parcels[2:]]
    assert len(wrong(replace(found, parcels={**found.parcels, customer: swapped}))) == 1
    assert len(wrong(replace(found, parcels={**found.parcels, customer: [*parcels, parcels[0]]}))) == 2
    without_trace = [(number, None) for number, _ in parcels]
    assert len(wrong(replace(found, parcels={**found.parcels, customer: without_trace}))) == 1


def test_directory_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    with pytest.raises(InvalidOption, match="no demo made it"):
        prepare(tmp_path / "mine")
    result = CommandLine()("demo", "--dir", str(tmp_path / "mine"), code=2)
    assert "name another directory with --dir" in result.output
    assert (tmp_path / "mine/thesis.txt").exists()


def test_directory_of_an_earlier_demo_is_emptied(tmp_path: Path) -> None:
    prepare(tmp_path / "demo")
    (tmp_path / "demo/report.html").write_text("old")
    prepare(tmp_path / "demo")
    assert [path.name for path in (tmp_path / "demo").iterdir()] == [MARK]


def test_directory_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidOption, match=r"the demo cannot have the directory .*file/demo"):
        prepare(tmp_path / "file/demo")


def test_server_whose_port_is_taken_says_so_once() -> None:
    with scratch_directory() as directory, socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = rf"^the server did not start: the server cannot listen on 127.0.0.1 port {port}: [\w ]+$"
        with pytest.raises(Unavailable, match=said), running_server(directory, port=port):
            pass


SERVE = """
import sys, pathlib
from lockstep.cli.demo.server import running_server
with running_server(pathlib.Path(sys.argv[1]), port=0) as server:
    print(server.url, flush=True)
    input()
"""


def kill_while_it_serves(directory: Path) -> None:
    program = [sys.executable, "-c", SERVE, str(directory)]
    demo = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert demo.stdout is not None
        assert demo.stdout.readline().startswith("http://")
        assert running_dsn(str(directory / "data")) is not None
    finally:
        demo.kill()
        demo.communicate()


async def test_server_does_not_outlive_a_demo_that_is_killed() -> None:
    with scratch_directory() as directory:
        kill_while_it_serves(directory)
        await until(lambda: running_dsn(str(directory / "data")) is None)
        await until(lambda: not list((directory / "data").rglob("postmaster.pid")))
