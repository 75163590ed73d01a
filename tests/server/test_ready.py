"""Liveness and readiness."""

from __future__ import annotations

from pathlib import Path

import psycopg

from support.http import Http
from support.server import running_server


def test_a_server_is_alive_and_ready(database_dsn: str, tmp_path: Path) -> None:
    with running_server(database_dsn, tmp_path) as server:
        http = Http(server.url)
        alive, ready = http.get("/health"), http.get("/ready")
    assert (alive.status, alive.json()["status"], alive.json()["database"]) == (200, "healthy", "connected")
    assert (ready.status, ready.json()["status"]) == (200, "ready")


def test_a_database_that_a_newer_version_has_migrated_is_not_ready(database_dsn: str, tmp_path: Path) -> None:
    with running_server(database_dsn, tmp_path) as server:
        with psycopg.connect(database_dsn) as connection:
            connection.execute("insert into lockstep.migration (version, name) values (9999, 'from the future')")
        http = Http(server.url)
        alive, ready = http.get("/health"), http.get("/ready")
    assert alive.status == 200
    assert (ready.status, ready.json()["status"]) == (503, "unready")
    assert "9999" in ready.json()["reason"]
