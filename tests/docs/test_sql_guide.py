"""The queries of the SQL guide give what the comments below them say."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest
from blocks import ROOT

from lockstep import Client, connect

GUIDE = ROOT / "docs/guides/sql.md"
ROLES = ("reporting", "order_reports")
"""Those of the guide."""
_BLOCK = re.compile(r"^```sql\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = _BLOCK.findall(GUIDE.read_text(encoding="utf-8"))
QUERIES = [block for block in BLOCKS if block.startswith("select")]
GRANTS = [block for block in BLOCKS if block.startswith("grant")]


def prepare(client: Client) -> None:
    """What the guide tells of."""
    client.configure("orders")
    for payload in ({"amount": 10}, {"amount": 20}, {"amount": 30, "note": "x" * 2000}):
        client.push("orders", payload, partition="customer-1")
    for amount in (1, 2):
        client.push("orders", {"amount": amount}, partition="customer-2")
    popped = client.pop("orders", group="billing", partition="customer-1", batch=3, lease_seconds=3600)
    popped[0].ack()
    client.configure("jobs", retry_limit=0)
    client.push("jobs", {"n": 1})
    client.push("jobs", {"n": 2})
    client.pop("jobs").nack("out of memory")
    client.configure("stops", retry_limit=0, on_exhausted="stop")
    client.push("stops", {"n": 1})
    client.pop("stops").nack("no")


@pytest.fixture
def dsn(database_dsn: str) -> str:
    with connect(database_dsn) as client:
        prepare(client)
    return database_dsn


def split(block: str) -> tuple[str, list[str]]:
    """The query, and what it gives."""
    lines = block.splitlines()
    return "\n".join(line for line in lines if not line.startswith("--")), [
        line.removeprefix("-- ") for line in lines if line.startswith("--")
    ]


def rows(connection: psycopg.Connection[Any], query: str) -> list[str]:
    return [" | ".join(map(str, row)) for row in connection.execute(query).fetchall()]


def test_queries_give_what_the_guide_says(dsn: str) -> None:
    assert len(QUERIES) == 8
    with psycopg.connect(dsn, autocommit=True) as connection:
        for block in QUERIES:
            query, expected = split(block)
            assert rows(connection, query) == expected, query


def test_guide_shows_every_view(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        found = connection.execute("select viewname from pg_views where schemaname = 'lockstep'").fetchall()
    shown = set(re.findall(r"from lockstep\.(\w+)", "".join(QUERIES)))
    assert shown == {name for (name,) in found}


def test_role_with_the_grants_of_the_guide_reads_every_view(dsn: str) -> None:
    [block] = GRANTS
    with psycopg.connect(dsn, autocommit=True) as connection:
        for role in ROLES:
            if not connection.execute("select 1 from pg_roles where rolname = %s", [role]).fetchone():
                connection.execute(f"create role {role}")
        connection.execute(block)
        connection.execute("set role reporting")
        for query in QUERIES:
            assert rows(connection, split(query)[0])
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("delete from lockstep.run")
        connection.execute("reset role")
        for role in ROLES:
            connection.execute(f"drop owned by {role}")
            connection.execute(f"drop role {role}")
