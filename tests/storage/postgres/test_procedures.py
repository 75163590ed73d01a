"""Calls of procedures are what their headers say, and every call in the code gives the arguments that they want."""

from __future__ import annotations

import ast
import importlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import asyncpg
import pytest

import lockstep
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.migrate import migrate

_ROOT = Path(lockstep.__file__).parent


class _Pair(NamedTuple):
    due_at: Any
    now: Any


class _Swapped(NamedTuple):
    now: Any
    due_at: Any


def _modules() -> Iterator[tuple[ModuleType, ast.Module]]:
    """The modules that call procedures."""
    for path in sorted(_ROOT.rglob("*.py")):
        text = path.read_text()
        if "sql.procedure(" in text or "import sql" in text:
            name = ".".join(["lockstep", *path.relative_to(_ROOT).with_suffix("").parts]).removesuffix(".__init__")
            yield importlib.import_module(name), ast.parse(text, str(path))


def _calls() -> Iterator[Any]:
    for module, tree in _modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                called = node.func
                within = isinstance(called, ast.Attribute) and called.attr == "within"
                procedure = _named(module, called.value if within and isinstance(called, ast.Attribute) else called)
                if procedure is not None:
                    where = f"{module.__name__}:{node.lineno}"
                    yield pytest.param(procedure, node, len(node.args) - within, id=f"{where}-{procedure.header.name}")


def _named(module: ModuleType, node: ast.expr) -> sql.Procedure[Any] | None:
    """The procedure that an expression such as NAME, module.NAME or NAMES[key] stands for; of several, the first."""
    if isinstance(node, ast.Name):
        found = getattr(module, node.id, None)
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        found = getattr(getattr(module, node.value.id, None), node.attr, None)
    else:
        found = None
    return found if isinstance(found, sql.Procedure) else None


@pytest.mark.parametrize(("procedure", "node", "positional"), list(_calls()))
def test_call_gives_what_the_procedure_takes(procedure: sql.Procedure[Any], node: ast.Call, positional: int) -> None:
    given = {keyword.arg for keyword in node.keywords if keyword.arg is not None}
    names = {parameter.name for parameter in procedure.header.given}
    assert positional == 0
    assert given <= names
    if all([keyword.arg is not None for keyword in node.keywords]):
        procedure.check(given)


def test_no_call_is_spelled_by_hand() -> None:
    """A statement that is nothing but the call of one procedure."""
    spelled = [
        f"{module.__name__}:{node.lineno}"
        for module, tree in _modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if node.value.startswith(("select lockstep.", "select * from lockstep.")) and " from unnest" not in node.value
    ]
    assert spelled == []


async def test_every_procedure_is_called_as_postgresql_knows_it(database_dsn: str) -> None:
    async with _connected(database_dsn) as connection:
        await migrate(connection)
        await _check_procedures(connection)


@asynccontextmanager
async def _connected(dsn: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


async def _check_procedures(connection: asyncpg.Connection[Any]) -> None:
    rows = await connection.fetch(
        "select proname, array_agg(prorettype::regtype::text) as results from pg_proc "
        "where pronamespace = 'lockstep'::regnamespace group by proname"
    )
    for row in rows:
        if row["results"] == ["trigger"]:
            continue
        procedure: sql.Procedure[Any] = sql.procedure(row["proname"])
        statement = await connection.prepare(procedure.sql)
        columns = tuple(attribute.name.removeprefix("_") for attribute in statement.get_attributes())
        assert procedure.header.is_scalar or not procedure.header.columns or columns == procedure.header.columns


def test_arguments_are_checked() -> None:
    due: sql.Procedure[Any] = sql.procedure("next_due")
    with pytest.raises(TypeError, match="after"):
        due(at=None)
    with pytest.raises(TypeError, match="until"):
        due(after=None, at=None, until=None)
    with pytest.raises(TypeError, match="nothing"):
        sql.procedure("next_due", as_text=["nothing"])
    with pytest.raises(KeyError):
        sql.procedure("next_due_of_all")


def test_records_must_have_the_columns_of_the_result() -> None:
    assert sql.procedure("next_due", _Pair)(after=1, at=2).rows([(3, 4)]) == [_Pair(3, 4)]
    with pytest.raises(TypeError, match="_Swapped"):
        sql.procedure("next_due", _Swapped)


def test_a_default_is_left_to_the_procedure() -> None:
    call: Any = sql.procedure("shared_complete")
    assert call(at=1, lease_ids=[]).sql == "select * from lockstep.shared_complete($1::uuid[], $2::timestamptz)"
    assert call(at=1, lease_ids=[]).args == [[], 1]
    skipping = call(at=1, lease_ids=[], also_to=[2])
    assert skipping.sql.endswith("($1::uuid[], $2::timestamptz, _also_to => $3::bigint[])")
    assert skipping.args == [[], 1, [2]]


def test_the_fields_of_a_row_are_given_by_name() -> None:
    call: Any = sql.procedure("index_messages")
    fields = ["uuids", "uuid_runs", "uuid_offsets", "texts", "text_runs", "text_offsets"]
    fields += ["traces", "trace_runs", "trace_offsets"]
    made = call(first_seqs=[1], partition_ids=[2], **dict.fromkeys(fields, None))
    assert "($1::uuid[], $2::int[]" in made.sql.replace("index_messages(row", "")
    assert made.sql.endswith("$9::int[])::lockstep.message_index, $10::bigint[], $11::bigint[])")
    assert made.args == [*[None] * 9, [2], [1]]


def test_calls_are_joined_and_wait_as_told() -> None:
    first: Any = sql.procedure("next_due")
    joined = sql.union(first(after=1, at=2), first(at=4, after=3))
    assert joined.sql.endswith("union all select * from lockstep.next_due($3::timestamptz, $4::timestamptz)")
    assert joined.args == [1, 2, 3, 4]
    hurried = first.within(0.5, at=2, after=1)
    assert hurried.args == [1, 2, "500"]
    assert "case when s.lock_ms <> '' then $1::timestamptz end, $2::timestamptz" in hurried.sql
    assert first.within(None, after=1, at=2) == first(after=1, at=2)
