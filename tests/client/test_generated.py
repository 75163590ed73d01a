"""The client for threads is the one for asyncio, generated."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TypeVar, get_args, get_type_hints

import pytest

import lockstep.client
from lockstep import AsyncClient, Client, Engine
from lockstep.core.wire.verbs import VERBS

ROOT = Path(__file__).parents[2]

# The life of an engine, what only servers do, and the stream queries, which have routes of their own.
NOT_FOR_CLIENTS = {
    "find_keys",
    "queues_of",
    "record_audit",
    "record_server",
    "open",
    "close",
    "ready",
    "listen",
    "stop_waiting",
    "wait_pop",
    "wait_next",
    "nack",
    "sample",
}
NOT_FOR_CLIENTS |= {"start_buffering", "push_applied"}
STREAM_QUERIES = {"register_stream_query", "stream_state", "stream_cycle"}
IN_ANOTHER_FORM = {"ping", "push", "pop", "next", "renew", "transaction"}


def generate(*arguments: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, str(root / "tools/generate-sync"), *arguments]
    return subprocess.run(program, capture_output=True, text=True, check=False)


def test_generated_modules_are_up_to_date() -> None:
    checked = generate("--check")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_stale_module_is_named_and_not_changed_by_a_check(tmp_path: Path) -> None:
    for folder in ("tools", "src/lockstep/client", "tests/client"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    twins = tmp_path / "src/lockstep/client/_sync"
    (twins / "client.py").write_text("stale = True\n")
    (twins / "gone.py").write_text("left = True\n")
    checked = generate("--check", root=tmp_path)
    assert checked.returncode == 1
    assert checked.stdout.splitlines() == [
        "src/lockstep/client/_sync/client.py is out of date: run tools/generate-sync",
        "src/lockstep/client/_sync/gone.py is out of date: run tools/generate-sync",
    ]
    assert (twins / "client.py").read_text() == "stale = True\n"
    assert generate(root=tmp_path).returncode == 0
    assert (twins / "client.py").read_text() == (ROOT / "src/lockstep/client/_sync/client.py").read_text()
    assert not (twins / "gone.py").exists()


def test_both_clients_have_the_same_methods() -> None:
    def methods(kind: type) -> dict[str, list[str]]:
        members = inspect.getmembers(kind, inspect.isfunction)
        return {name: list(inspect.signature(member).parameters) for name, member in members if name[0] != "_"}

    assert methods(AsyncClient) == methods(Client)
    assert not any(inspect.iscoroutinefunction(member) for _, member in inspect.getmembers(Client))


def test_client_has_every_verb_of_the_engine() -> None:
    verbs = {name for name, _ in inspect.getmembers(Engine, inspect.iscoroutinefunction) if name[0] != "_"}
    verbs -= NOT_FOR_CLIENTS | STREAM_QUERIES
    assert verbs - IN_ANOTHER_FORM == set(VERBS) - STREAM_QUERIES
    assert {verb for verb in verbs if not hasattr(AsyncClient, verb)} == set()


def test_answers_over_http_are_those_of_the_engine() -> None:
    assert {name: get_type_hints(getattr(Engine, name))["return"] or type(None) for name in VERBS} == {
        name: verb.result or type(None) for name, verb in VERBS.items()
    }


def test_everything_that_is_exported_exists() -> None:
    assert all(hasattr(lockstep.client, name) for name in lockstep.client.__all__)


def test_import_is_light() -> None:
    program = "import sys, lockstep; print({'aiohttp', 'urllib3', 'pydantic'} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout == "set()\n"


@pytest.mark.parametrize("name", ["Client", "Consumer", "DeliveredMessage", "Delivery", "Producer", "Transaction"])
def test_help_says_what_a_method_does(name: str) -> None:
    methods = inspect.getmembers(getattr(lockstep.client, name), inspect.isfunction)
    silent = [method for method, function in methods if not method.startswith("_") and not inspect.getdoc(function)]
    assert silent == []


@pytest.mark.parametrize("client", [AsyncClient, Client])
def test_function_keeps_its_type_as_a_handler(client: type) -> None:
    [taken], given = get_args(get_type_hints(client.worker)["return"])  # type: ignore[attr-defined]
    assert isinstance(given, TypeVar)
    assert taken is given
