"""The processes of the kill -9 tests: clients, and the owner of an embedded PostgreSQL. All may be killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from lockstep import Engine, open_engine, queue_options
from support import chaos_checks
from support.chaos_load import (
    AUDIT,
    GROUPS,
    JOBS,
    JOBS_DONE,
    QUEUES,
    RELAY,
    RELAYED,
    ConsumerPlan,
    JobsPlan,
    Plan,
    ProducerPlan,
    WorkerPlan,
)
from support.embedded_tools import (
    Host,
    can_connect,
    postmaster_pid,
    processes_in,
    python_environment,
    query,
    wait_until,
)
from support.replication import Pair

# The machine may be busy with other tests.
PATIENCE_SECONDS = 90.0
DRAIN_POLL_SECONDS = 0.1
# The supervisor gives up after six deaths of its server without a minute of health between them.
KILLS_PER_OWNER_MAX = 5
# Leases of killed consumers, and retries, must not use up a message's attempts.
RETRY_LIMIT = 10_000


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """The length of a scenario: a number of kills, and a time limit."""

    kills_min: int
    seconds: float
    delay_seconds_max: float
    """Longest random wait before a kill."""
    pause_seconds_max: float
    """Longest pause of a producer between pushes."""

    def kills(self) -> Iterator[int]:
        """The numbers of the kills, each a random while after the last."""
        until = time.monotonic() + self.seconds
        number = 0
        while number < self.kills_min or time.monotonic() < until:
            time.sleep(random.uniform(0, self.delay_seconds_max))
            yield number
            number += 1


SHORT = Scale(kills_min=2, seconds=0, delay_seconds_max=0.3, pause_seconds_max=0.01)
SOAK = Scale(kills_min=20, seconds=120, delay_seconds_max=4, pause_seconds_max=0.02)


class Server:
    """A durable PostgreSQL and the process that owns it."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self._own()
        durability = query(self.dsn, "select current_setting('fsync'), current_setting('synchronous_commit')")
        assert durability == [("on", "on")]

    def _own(self) -> None:
        self._host = Host(self.data_dir)
        self._kills = 0
        self.dsn: str = self._host.wait_for("dsn")["dsn"]

    def close(self) -> None:
        self._host.close()

    def kill_postmaster(self) -> None:
        """Kill only the postmaster; its processes detect this by themselves. Returns when the server is back."""
        pid = postmaster_pid(self.data_dir)
        _kill(pid)
        self._wait_for_another(pid)

    def kill_everything(self) -> None:
        """Kill all processes of PostgreSQL at once. Returns when the server is back."""
        pids = self.pids()
        _kill(*pids)
        self._wait_for_another(pids[0])

    def kill_owner(self, *, with_server: bool) -> None:
        """Kill the owner, and optionally its server, too. Returns with a new owner."""
        dsn, pids = self.dsn, self.pids()
        self._host.process.kill()
        if with_server:
            _kill(*pids)
        self._host.close()
        self._own()
        assert self.dsn == dsn

    def pids(self) -> list[int]:
        """The postmaster comes first: once it is killed it starts no others."""
        return [postmaster_pid(self.data_dir), *processes_in(self.data_dir / "pgdata")]

    def _wait_for_another(self, pid: int) -> None:
        wait_until(lambda: can_connect(self.dsn) and postmaster_pid(self.data_dir) != pid, timeout=PATIENCE_SECONDS)
        self._kills += 1
        if self._kills == KILLS_PER_OWNER_MAX:
            self._host.close()
            self._own()


def _kill(*pids: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Client:
    """A producer or consumer in a process of its own, which may live several times."""

    def __init__(self, program: str, plan: Plan) -> None:
        self.plan = plan
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def errors(self) -> Path:
        return self.plan.log.with_suffix(".err")

    def start(self) -> None:
        self.plan = msgspec.structs.replace(self.plan, life=self.plan.life + 1)
        command = [sys.executable, "-W", "error", "-m", f"support.{self._program}", self._argument()]
        with self.errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=errors, stderr=errors, env=_environment(), cwd="/"
            )

    def _argument(self) -> str:
        return msgspec.json.encode(self.plan).decode()

    def logged_bytes(self) -> int:
        return self.plan.log.stat().st_size if self.plan.log.exists() else 0

    @property
    def pid(self) -> int:
        return self._running().pid

    def kill(self) -> None:
        """Returns when the process is gone."""
        process = self._running()
        process.kill()
        self._end(process)

    def ask_to_end(self) -> None:
        process = self._running()
        assert process.stdin is not None
        process.stdin.close()

    def wait_ended(self) -> None:
        process = self._process
        assert process is not None
        assert process.wait(PATIENCE_SECONDS) == 0, self._last_words()
        self._end(process)

    def discard(self) -> None:
        """Clean up at the end of a test, whatever its outcome."""
        if self._process is not None:
            self._process.kill()
            self._end(self._process)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        process.wait(PATIENCE_SECONDS)
        process.stdin.close()
        self._process = None

    def _running(self) -> subprocess.Popen[bytes]:
        """The process. A client ends only on request, or after an unexpected error."""
        process = self._process
        assert process is not None, f"{self.plan.name} does not run"
        assert process.poll() is None, self._last_words()
        return process

    def check_running(self) -> None:
        if self._process is not None:
            self._running()

    def _last_words(self) -> str:
        return f"{self.plan.name} ended:\n{self.errors.read_text()}"


def _environment() -> dict[str, str]:
    environment = python_environment()
    tests = Path(__file__).parents[1]
    return {**environment, "PYTHONPATH": os.pathsep.join([environment["PYTHONPATH"], str(tests)])}


class Fleet:
    """Clients of one server, and their end."""

    def __init__(self, server: Server | Pair, folder: Path, scale: Scale) -> None:
        self.server = server
        self.doubtful: list[tuple[float, float]] = []
        """Times in which what happened may be lost."""
        self.folder = folder
        self.urls: tuple[str, ...] = ()
        """Servers on the database, if the clients are to go through those."""
        self.producers: list[Client] = []
        self.consumers: list[Client] = []
        self._scale = scale

    def launch(self) -> None:
        """Producers of every kind over the same partitions, two consumers in each group, all at work."""
        self.prepare()
        self.add_producer("uuid", transaction_ids="uuid")
        self.add_producer("text", transaction_ids="text")
        self.add_producer("plain-1")
        self.add_producer("plain-2")
        for name in ("1", "2"):
            self.add_consumer(f"audit-{name}", group=AUDIT)
            self.add_consumer(f"relay-{name}", group=RELAY)
        self.wait_for_progress()

    def launch_jobs(self) -> None:
        """The same load, and a shared group with three consumers."""
        self.prepare()
        asyncio.run(_prepare_jobs(self.server.dsn))
        self.add_producer("uuid", transaction_ids="uuid")
        self.add_producer("plain")
        for group in GROUPS:
            self.add_consumer(group, group=group)
        for name in ("1", "2", "3"):
            self.add_jobs_consumer(f"jobs-{name}")
        self.wait_for_progress()

    def prepare(self) -> None:
        asyncio.run(_prepare(self.server.dsn))

    def add_producer(self, name: str, **changes: object) -> Client:
        pause = self._scale.pause_seconds_max
        plan = ProducerPlan(
            name=name, dsn=self.server.dsn, urls=self.urls, folder=str(self.folder), pause_seconds_max=pause
        )
        client = Client("chaos_producer", msgspec.structs.replace(plan, **changes))
        self.producers.append(client)
        client.start()
        return client

    def add_consumer(self, name: str, *, group: str, **changes: object) -> Client:
        plan = ConsumerPlan(name=name, dsn=self.server.dsn, urls=self.urls, folder=str(self.folder), group=group)
        client = Client("chaos_consumer", msgspec.structs.replace(plan, **changes))
        self.consumers.append(client)
        client.start()
        return client

    def add_worker(self, name: str, *, group: str, whole: bool, **changes: object) -> Client:
        plan = WorkerPlan(
            name=name, dsn=self.server.dsn, urls=self.urls, folder=str(self.folder), group=group, whole=whole
        )
        client = Client("chaos_worker", msgspec.structs.replace(plan, **changes))
        self.consumers.append(client)
        client.start()
        return client

    def add_jobs_consumer(self, name: str) -> Client:
        """A consumer of a shared group; it does not use servers."""
        client = Client("chaos_jobs", JobsPlan(name=name, dsn=self.server.dsn, folder=str(self.folder)))
        self.consumers.append(client)
        client.start()
        return client

    def wait_for_progress(self, clients: Iterable[Client] | None = None) -> None:
        """Wait until each of these clients has logged something more."""
        waiting = list(self._all() if clients is None else clients)
        logged_bytes = {client.plan.name: client.logged_bytes() for client in waiting}

        def all_went_on() -> bool:
            self._check_running()
            waiting[:] = [c for c in waiting if c.logged_bytes() <= logged_bytes[c.plan.name]]
            return not waiting

        wait_until(all_went_on, timeout=PATIENCE_SECONDS)

    def kill_for_good(self, consumer: Client) -> None:
        consumer.kill()
        self.consumers.remove(consumer)

    def finish(self) -> list[str]:
        """Let the consumers take all messages, and return the violations found then."""
        _end(self.producers)
        asyncio.run(self._drain())
        _end(self.consumers)
        return asyncio.run(self._problems())

    def logs(self) -> list[Path]:
        return sorted(self.folder.glob("*.jsonl"))

    def close(self) -> None:
        for client in self._all():
            client.discard()

    def _all(self) -> list[Client]:
        return [*self.producers, *self.consumers]

    def _check_running(self) -> None:
        for client in self._all():
            client.check_running()

    async def _drain(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        async with open_engine(self.server.dsn) as engine:
            while await _pending(engine):
                self._check_running()
                assert time.monotonic() < deadline, f"not drained: {await engine.utilisation()}"
                await asyncio.sleep(DRAIN_POLL_SECONDS)

    async def _problems(self) -> list[str]:
        plans: Sequence[ProducerPlan] = [client.plan for client in self.producers]  # type: ignore[misc]
        async with open_engine(self.server.dsn) as engine:
            return await chaos_checks.problems(engine, self.logs(), plans, doubtful=self.doubtful)


def _end(clients: Iterable[Client]) -> None:
    for client in clients:
        client.ask_to_end()
    for client in clients:
        client.wait_ended()


async def _prepare(dsn: str) -> None:
    async with open_engine(dsn) as engine:
        await engine.configure(RELAYED)
        for queue in QUEUES:
            await engine.configure(queue, queue_options(retry_limit=RETRY_LIMIT))
            for group in GROUPS:
                await engine.subscribe(queue, group)


async def _prepare_jobs(dsn: str) -> None:
    async with open_engine(dsn) as engine:
        await engine.configure(JOBS_DONE)
        for queue in QUEUES:
            await engine.subscribe(queue, JOBS, mode="shared")


async def _pending(engine: Engine) -> int:
    groups = [(queue, group.name) for queue in QUEUES for group in await engine.groups(queue=queue)]
    depths = [await engine.depth(queue, group) for queue, group in groups]
    return sum(depth.pending for depth in depths)
