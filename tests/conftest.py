"""Fixtures for every test: a set clock, a PostgreSQL per worker, a database per test, and each store."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, core, settings

pytest.register_assert_rewrite("support")

from lockstep.storage.base import Store  # noqa: E402
from support.builders import SMALL_SLICES  # noqa: E402
from support.clock import SetClock  # noqa: E402
from support.databases import Databases, running_server  # noqa: E402
from support.distribution import ByFile  # noqa: E402

# In the background a shell lets its commands ignore Ctrl-C, and they their children: some tests press it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says something about the machine only.
settings.register_profile("lockstep", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("lockstep")

STORES = ("memory", "postgres")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Random examples follow the seed of the random order, so that a run can be repeated."""
    seed = config.getoption("randomly_seed", None)
    if core.global_force_seed is None and isinstance(seed, int):
        core.global_force_seed = seed


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile | None:
    return ByFile(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture(scope="session")
def server_dsn() -> Iterator[str]:
    """A PostgreSQL for this worker, without durability."""
    with running_server() as dsn:
        yield dsn


@pytest.fixture(scope="session")
def databases(server_dsn: str) -> Iterator[Databases]:
    # Other sessions and workers may use the same server, so each has names of its own.
    made = Databases(server_dsn, prefix=f"lockstep_test_{uuid4().hex[:12]}")
    yield made
    made.close()


@pytest.fixture
def database_dsn(databases: Databases) -> Iterator[str]:
    """A migrated database of the test's own."""
    dsn = databases.clone()
    yield dsn
    databases.drop(dsn)


@pytest.fixture
def empty_database_dsn(databases: Databases) -> Iterator[str]:
    """A database of the test's own that was never migrated."""
    dsn = databases.create()
    yield dsn
    databases.drop(dsn)


def _memory(_request: pytest.FixtureRequest, clock: SetClock) -> Store:
    from lockstep.storage.memory import MemoryStore

    return MemoryStore(clock=clock, page_looked_into_max=SMALL_SLICES.page_looked_into_max)


def _postgres(request: pytest.FixtureRequest, clock: SetClock) -> Store:
    from lockstep.storage.postgres.store import PostgresStore

    databases: Databases = request.getfixturevalue("databases")
    return PostgresStore(databases.emptied(), config=SMALL_SLICES, clock=clock)


_BUILDERS: dict[str, Callable[[pytest.FixtureRequest, SetClock], Store]] = {
    "memory": _memory,
    "postgres": _postgres,
}


@pytest.fixture(params=STORES)
def unopened_store(request: pytest.FixtureRequest, clock: SetClock) -> Store:
    """Each store in turn, on the set clock; built apart, to prepare databases outside the event loop."""
    return _BUILDERS[request.param](request, clock)


@pytest_asyncio.fixture
async def store(unopened_store: Store) -> AsyncIterator[Store]:
    """Each store in turn, open and empty, on the set clock."""
    await unopened_store.open()
    yield unopened_store
    await unopened_store.close()
    await unopened_store.close()  # The contract says: safe to call twice.
