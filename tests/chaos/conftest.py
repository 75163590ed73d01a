"""A durable server of the test's own, and its clients."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.chaos_fleet import SHORT, SOAK, Fleet, Scale, Server
from support.databases import scratch_directory
from support.embedded_tools import add_cluster

SOAK_VARIABLE = "LOCKSTEP_SOAK"


@pytest.fixture
def scale(monkeypatch: pytest.MonkeyPatch) -> Scale:
    is_soak = bool(os.environ.get(SOAK_VARIABLE))
    # It begins like a setting, and an unknown setting is an error.
    monkeypatch.delenv(SOAK_VARIABLE, raising=False)
    return SOAK if is_soak else SHORT


@pytest.fixture
def folder() -> Iterator[Path]:
    with scratch_directory() as path:
        yield path


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    server = Server(add_cluster(folder / "data"))
    yield server
    server.close()


@pytest.fixture
def fleet(folder: Path, server: Server, scale: Scale) -> Iterator[Fleet]:
    (folder / "logs").mkdir()
    fleet = Fleet(server, folder / "logs", scale)
    yield fleet
    fleet.close()
