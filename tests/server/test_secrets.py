"""Secrets of a server, and of those who ask it, are in nothing that it says: not in its log, and in no answer."""

from __future__ import annotations

import json
from base64 import b64encode
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from lockstep.server.routes import ROUTES
from support.databases import Databases, database_name
from support.http import Http
from support.server import running_server

PASSWORD = "open-sesame-417"
KEY = b64encode(b"for no eyes, and of thirty-two!!").decode()
SIGNING = "the-secret-with-which-tokens-are-signed-812"
TOKEN = "lsk_token-of-somebody-who-asks-335"
PAYLOAD = "what-a-customer-wrote-964"
SECRETS = (PASSWORD, KEY, SIGNING, TOKEN)


@pytest.fixture
def guarded_dsn(databases: Databases) -> str:
    """A database that is reached with a password, whether the server asks for it or not."""
    dsn = databases.clone()
    with psycopg.connect(dsn, autocommit=True) as connection:
        user = connection.info.user
        connection.execute(sql.SQL("alter role {} password {}").format(sql.Identifier(user), PASSWORD))
    parts = urlsplit(dsn)
    return parts._replace(netloc=f"{user}:{PASSWORD}@{parts.netloc.rpartition('@')[2]}").geturl()


def _said_by(http: Http) -> list[bytes]:
    """All answers of all routes that read, to somebody with a token, and what the server says to bad input."""
    asking = {"Authorization": f"Bearer {TOKEN}", "Cookie": f"session={TOKEN}"}
    paths = [route.path for route in ROUTES.all if route.method == "GET" and "events" not in route.path]
    said = [http.send("GET", "/".join([_named(piece) for piece in path.split("/")]), headers=asking) for path in paths]
    bodies = (b"{", b'{"items":[{"queue":"","payload":"%b"}]}' % PAYLOAD.encode(), b"[" * 100_000)
    said += [http.send("POST", "/api/v1/push", body, asking) for body in bodies]
    said.append(http.send("GET", "/api/v1/pop/queue/%ff", headers=asking))
    with closing(http.socket()) as connection:
        connection.sendall(f"GET /\0 HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
        raw = connection.recv(65536)
    return [raw, *[answer.body + json.dumps(answer.headers).encode() for answer in said]]


def _named(piece: str) -> str:
    return {":queue": "guarded", ":partitionId": "1", ":id": "1"}.get(piece, "x" if piece.startswith(":") else piece)


@pytest.mark.parametrize(("workers", "level"), [(1, "debug"), (2, "info")])
def test_no_secret_is_said(guarded_dsn: str, tmp_path: Path, workers: int, level: str) -> None:
    settings = {"encryption_key": KEY, "auth_jwt_secret": SIGNING, "log_level": level, "log_format": "json"}
    with running_server(guarded_dsn, tmp_path, workers=workers, slow_query_seconds=0.000001, **settings) as server:
        http = Http(server.url)
        http.patch("/api/v1/queues/guarded", {"options": {"encryptionEnabled": True}})
        http.push("guarded", PAYLOAD)
        said = _said_by(http)
        _drop(guarded_dsn)
        said += _said_by(http)
    log = (tmp_path / "server.log").read_bytes()
    assert b'"event":"request_answered"' in log or level == "info"
    for secret in SECRETS:
        assert [one for one in (*said, log) if secret.encode() in one] == []
    assert PAYLOAD.encode() not in log


def _drop(dsn: str) -> None:
    """The database is gone all of a sudden, so that every call fails."""
    name = sql.Identifier(database_name(dsn))
    with psycopg.connect(dsn, dbname="postgres", autocommit=True) as connection:
        connection.execute(sql.SQL("drop database {} with (force)").format(name))


def test_start_that_fails_says_no_secret(tmp_path: Path) -> None:
    dsn = f"postgresql://ann:{PASSWORD}@127.0.0.1:1/db"
    bad: list[dict[str, object]] = [
        {"encryption_key": KEY[:-4]},
        {"encryption_key": KEY, "host": "0.0.0.0"},
        {"auth": "required", "auth_jwt_secret": SIGNING[:5]},
    ]
    for settings in bad:
        with pytest.raises(RuntimeError) as failed, running_server(dsn, tmp_path, **settings):
            pass
        assert [secret for secret in (*SECRETS, KEY[:-4]) if secret in str(failed.value)] == []
