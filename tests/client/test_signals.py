"""Workers that are told to stop by a signal, and clients that many threads share."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lockstep import connect, new_message

SYNC = """
import sys, lockstep
with lockstep.connect(sys.argv[1]) as client:
    @client.worker("orders")
    def handle(message):
        if message.payload == 1:
            print("working", flush=True)
            client._stop.wait(60)
    client.run()
    print("drained", flush=True)
"""
ASYNC = """
import asyncio, sys, lockstep
async def main():
    async with lockstep.connect_async(sys.argv[1]) as client:
        @client.worker("orders")
        async def handle(message):
            if message.payload == 1:
                print("working", flush=True)
                await client._stop.wait(60)
        await client.run()
        print("drained", flush=True)
asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("program", [SYNC, ASYNC], ids=["sync", "async"])
def test_signal_drains_the_workers(database_dsn: str, tmp_path: Path, program: str, number: signal.Signals) -> None:
    with connect(database_dsn) as client:
        client.push_many([new_message("orders", i) for i in range(4)])
    script = tmp_path / "worker.py"
    script.write_text(program)
    command = [sys.executable, "-W", "error", str(script), database_dsn]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "working\n"
        worker.send_signal(number)
        # The message in hand is finished after the signal, and nothing is taken up any more.
        said, _ = worker.communicate(timeout=60)
    assert (said, worker.returncode) == ("drained\n", 0)
    with connect(database_dsn) as client:
        again = client.pop("orders", batch=10)
        assert [(message.payload, message.attempt) for message in again] == [(2, 1), (3, 1)]


@pytest.mark.parametrize(("program", "sleep"), [(SYNC, "time.sleep"), (ASYNC, "await asyncio.sleep")])
def test_second_signal_gives_back_what_is_being_handled(
    database_dsn: str, tmp_path: Path, program: str, sleep: str
) -> None:
    with connect(database_dsn) as client:
        client.push_many([new_message("orders", i) for i in range(1, 4)])
    script = tmp_path / "worker.py"
    busy = program.replace("_stop.wait(60)", f"_stop.wait(60); print('draining', flush=True); {sleep}(60)")
    # A signal that comes before the drain has begun waits for its end.
    script.write_text("import time\n" + busy.replace("client.run()", "client.run(drain_timeout_seconds=10)"))
    command = [sys.executable, str(script), database_dsn]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        for said in ("working\n", "draining\n"):
            assert worker.stdout.readline() == said
            worker.send_signal(signal.SIGINT)
        _, failure = worker.communicate(timeout=60)
    assert "KeyboardInterrupt" in failure
    with connect(database_dsn) as client:
        again = client.pop("orders", batch=10)
        assert [(message.payload, message.attempt) for message in again] == [(1, 1), (2, 1), (3, 1)]


@pytest.mark.parametrize("kind", ["memory", "http"])
def test_many_threads_share_a_client(kind: str, request: pytest.FixtureRequest) -> None:
    address = "memory://" if kind == "memory" else request.getfixturevalue("server_url")
    with connect(address) as client:

        def push(number: int) -> None:
            for i in range(20):
                client.push("orders", i, partition=f"p{number}")

        threads = [threading.Thread(target=push, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number in range(8):
            assert client.pop("orders", partition=f"p{number}", batch=100).payloads() == list(range(20))
