"""The benchmark of other queues measures what it says, and names what it cannot measure."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers import phases
from benchmarks.peers.catalog import PEERS, Peer
from benchmarks.peers.phases import Peers, Programs
from benchmarks.peers.pictures import FIGURES, draw
from benchmarks.peers.running import Missing
from benchmarks.servers import connected

_BY_NAME = {peer.name: peer for peer in PEERS}


async def measured(dsn: str, peer: Peer) -> dict[str, float]:
    async with connected(dsn) as server:
        found = await Peers(server, Programs(python=Path("/nowhere/python")), seconds=0.1).measure(peer)
        assert await server.own_databases() == []
    return found


async def test_lockstep_is_measured_in_all_phases(server_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases, "MESSAGES_MAX", 1000)
    found = await measured(server_dsn, _BY_NAME["Lockstep, direct"])
    assert {"push_1", "push_100", "consume", "both", "end_to_end_p50_ms", "bytes_per_message", "server_mib"} <= set(
        found
    )
    assert all(value > 0 for value in found.values())


@pytest.mark.parametrize("name", ["PGMQ", "pg-boss"])
async def test_client_that_is_not_installed_is_missing(server_dsn: str, name: str) -> None:
    with pytest.raises(Missing, match="packages are not installed"):
        await measured(server_dsn, _BY_NAME[name])


async def test_failure_of_a_driver_is_told_in_its_own_words(server_dsn: str) -> None:
    broken = Peer("broken", "lockstep_client", "ours", "postgres", "nothing", {"no_such_setting": 1})
    with pytest.raises(RuntimeError, match=r"broken, setup: .*no_such_setting"):
        await measured(server_dsn, broken)


def test_pictures_show_each_figure_and_are_the_same_each_time(tmp_path: Path) -> None:
    rows = {"Lockstep, direct": dict.fromkeys(FIGURES, 2.0), "COPY": {"push_100": 1.0}}
    first, second = draw(rows, tmp_path / "a"), draw(rows, tmp_path / "b")
    assert len(first) == len(FIGURES)
    assert [path.read_text() for path in first] == [path.read_text() for path in second]
    assert "COPY" in first[0].read_text()
    assert "COPY" not in first[1].read_text()
