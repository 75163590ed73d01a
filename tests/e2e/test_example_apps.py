"""The examples that are applications of their own: started as their READMEs say, on a real PostgreSQL."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from lockstep import connect
from support.http import Http

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
DJANGO = EXAMPLES / "django-outbox"
# Any free port; runserver cannot say which it took.
SERVE_WSGI = """
from wsgiref.simple_server import make_server
from shop.wsgi import application
with make_server("127.0.0.1", 0, application) as server:
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
"""


@contextmanager
def started(*arguments: str, environ: Mapping[str, str], cwd: Path = ROOT) -> Iterator[subprocess.Popen[str]]:
    """A program in Python, stopped at the end. What it says on either stream can be read line by line."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)


def line_with(process: subprocess.Popen[str], pattern: str) -> str:
    """What the pattern finds in the first line that has it. A program that never says it is killed."""
    assert process.stdout is not None
    said = []
    deadline = threading.Timer(120, process.kill)
    deadline.start()
    try:
        for line in process.stdout:
            said.append(line)
            if found := re.search(pattern, line):
                return found[0]
    finally:
        deadline.cancel()
    raise AssertionError(f"the program ended without {pattern}:\n{''.join(said)}")


def ordered(http: Http, item: str, customer: str) -> int:
    body = f'{{"item": "{item}", "customer": "{customer}"}}'.encode()
    return http.send("POST", "/orders", body, {"content-type": "application/json"}).status


def check_shop(url: str, dsn: str, rows: str) -> None:
    """Orders and messages are the same, also of those that failed after both were written."""
    http = Http(url)
    assert [ordered(http, "lamp", customer) for customer in ("ann", "bob", "cleo")] == [201, 201, 409]
    assert ordered(http, "table", "ann") == 201
    with psycopg.connect(dsn) as connection:
        written = connection.execute(rows).fetchall()
    assert written == [("ann", "lamp"), ("ann", "table"), ("bob", "lamp")]
    with connect(dsn) as client:
        popped = client.pop("orders", group="test", batch=10, partitions=10)
        assert sorted((message.partition, message.payload["item"]) for message in popped) == written


def shipped(worker: subprocess.Popen[str], count: int) -> set[str]:
    return {line_with(worker, r"shipping .*") for _ in range(count)}


def test_fastapi_outbox(database_dsn: str) -> None:
    environ = {"DATABASE_URL": database_dsn}
    program = ("-m", "uvicorn", "--app-dir", "examples/fastapi-outbox", "--port", "0", "app:app")
    with (
        started(*program, environ=environ) as app,
        started("examples/fastapi-outbox/worker.py", environ=environ) as worker,
    ):
        check_shop(
            line_with(app, r"http://127\.0\.0\.1:\d+"),
            database_dsn,
            "select customer, item from purchase order by customer, item",
        )
        assert shipped(worker, 3) == {"shipping lamp to ann", "shipping table to ann", "shipping lamp to bob"}


def environ_of(dsn: str) -> dict[str, str]:
    """The database, as the settings of the example take it."""
    parts: dict[str, Any] = conninfo_to_dict(dsn)
    names = {"SHOP_DATABASE": "dbname", "PGHOST": "host", "PGPORT": "port", "PGUSER": "user", "PGPASSWORD": "password"}
    return {variable: str(parts[name]) for variable, name in names.items() if parts.get(name)}


def test_django_outbox(database_dsn: str) -> None:
    environ = environ_of(database_dsn)
    for arguments in (("migrate", "--verbosity", "0"), ("makemigrations", "--check", "--verbosity", "0"), ("check",)):
        command = [sys.executable, "-W", "error", "manage.py", *arguments]
        subprocess.run(command, cwd=DJANGO, env={**os.environ, **environ}, check=True, timeout=120)
    with (
        started("-c", SERVE_WSGI, environ=environ, cwd=DJANGO) as app,
        started("manage.py", "ship", environ=environ, cwd=DJANGO) as worker,
    ):
        check_shop(
            line_with(app, r"http://127\.0\.0\.1:\d+"),
            database_dsn,
            "select customer, item_id from shop_order order by customer, item_id",
        )
        assert shipped(worker, 3) == {"shipping lamp to ann", "shipping table to ann", "shipping lamp to bob"}


def test_django_push_wants_a_transaction(database_dsn: str) -> None:
    program = "import django; django.setup(); from shop.messages import push; push('orders', 1, partition='a')"
    environ = {**os.environ, **environ_of(database_dsn), "DJANGO_SETTINGS_MODULE": "shop.settings"}
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, cwd=DJANGO, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert "push belongs into transaction.atomic()" in ended.stderr


@pytest.mark.parametrize(
    "folder", sorted(path for path in EXAMPLES.iterdir() if path.is_dir()), ids=lambda one: one.name
)
def test_every_example_has_a_readme_that_the_list_names(folder: Path) -> None:
    assert (folder / "README.md").is_file()
    assert f"[{folder.name}]({folder.name}/README.md)" in (EXAMPLES / "README.md").read_text()
