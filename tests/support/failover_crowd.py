"""Everything that uses a database and has to live through a failover: clients of the library, a server with its buffer
and its clients, workers of the SDK, and a Spark stream."""

from __future__ import annotations

import json
import shlex
import time
import urllib.request
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from lockstep.cli.main import cli
from support.chaos_fleet import PATIENCE_SECONDS, Client, Fleet
from support.chaos_load import AUDIT, ENGINE_WORKERS, HTTP_WORKERS, QUEUES, RELAY
from support.chaos_servers import HttpServer
from support.embedded_tools import wait_until
from support.failover_streams import BareStream, SparkStream, Stream
from support.replication import Pair
from support.spark_reads import Query

Place = tuple[str, str, int, str]
"""Queue, partition, seq and payload."""
_PAUSE_SECONDS_MAX = 0.1
"""Of producers: so many processes share the machine that a full load would only slow the test down."""
_BUFFERED = b'"type":"Buffered"'


class Crowd:
    def __init__(self, pair: Pair, fleet: Fleet, folder: Path, *, spark: bool, transaction_ids: bool) -> None:
        self.pair = pair
        self.fleet = fleet
        self._transaction_ids = transaction_ids
        queues = ",".join(QUEUES)
        fleet.prepare()
        self.stream: Stream = SparkStream(pair.dsn, queues, folder / "spark") if spark else BareStream(pair.dsn, queues)
        try:
            self.server = HttpServer(pair.dsn, folder / "server")
        except BaseException:
            self.stream.close()
            raise

    def launch(self) -> None:
        """All at work."""
        self.stream.wait_for_start()
        fleet, urls = self.fleet, (self.server.url,)
        self._buffering: Client = fleet.add_producer("http", urls=urls, pause_seconds_max=_PAUSE_SECONDS_MAX)
        ids = "uuid" if self._transaction_ids else None
        fleet.add_producer("library", transaction_ids=ids, pause_seconds_max=_PAUSE_SECONDS_MAX)
        fleet.add_consumer(AUDIT, group=AUDIT, urls=urls)
        fleet.add_consumer(RELAY, group=RELAY)
        fleet.add_worker(HTTP_WORKERS, group=HTTP_WORKERS, whole=True, urls=urls)
        fleet.add_worker(ENGINE_WORKERS, group=ENGINE_WORKERS, whole=False)
        fleet.wait_for_progress()
        self.stream.wait_for_batch()

    def wait_for_buffering(self) -> None:
        """Until the server has answered a push from its buffer."""
        log = self._buffering.plan.log
        before = log.read_bytes().count(_BUFFERED)
        wait_until(lambda: log.read_bytes().count(_BUFFERED) > before, timeout=PATIENCE_SECONDS)

    def buffer_and_drain(self) -> None:
        """The server buffers pushes, and drains them into the database, until no file has them any more."""
        self.operate("lockstep maintenance on")
        self.wait_for_buffering()
        self.operate("lockstep maintenance off")
        wait_until(lambda: self.buffer()["messages"] == 0, timeout=PATIENCE_SECONDS)

    def buffer(self) -> dict[str, Any]:
        """What the server has buffered."""
        with urllib.request.urlopen(f"{self.server.url}/api/v1/system/maintenance", timeout=PATIENCE_SECONDS) as answer:
            found: dict[str, Any] = json.load(answer)
        return found["bufferStats"] | {"messages": found["bufferedMessages"]}

    def operate(self, command: str) -> str:
        """Run a command as the guide prints it, against the server; returns what it says."""
        program, *arguments = shlex.split(command)
        assert program == "lockstep"
        done = CliRunner().invoke(cli, arguments, env={"LOCKSTEP_URL": self.server.url}, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    def accept_lost_buffer(self) -> None:
        """The server stopped draining, says why, and goes on when it is told to."""
        wait_until(lambda: self.buffer()["bytesLost"] > 0, timeout=PATIENCE_SECONDS)
        assert "lockstep maintenance accept" in self.buffer()["waitingFor"]
        self.operate("lockstep maintenance accept")
        wait_until(lambda: self.buffer()["bytesLost"] == 0, timeout=PATIENCE_SECONDS)

    def accept_stream(self) -> None:
        """The stream stopped, says why, and goes on when it is allowed to."""
        self.operate(self.stream.wait_for_refusal())
        self.stream.go_on()
        self.stream.wait_for_batch()

    def finish(self) -> tuple[dict[str, Place], list[dict[str, Any]]]:
        """All is consumed and nothing is wrong with it. Returns what is stored, by message id, and what the stream has
        read."""
        assert self.fleet.finish() == []
        assert self.server.process.process.poll() is None
        reading = Query(self.pair.dsn, queue=",".join(QUEUES))
        stored = {row["message_id"]: place_of(row) for row in reading.drain()}
        reading.close()
        return stored, self.stream.finish()

    def close(self) -> None:
        self.fleet.close()
        self.stream.close()
        self.server.close()

    def went_on(self) -> None:
        """Until everybody has got on, the stream too."""
        now = time.monotonic()
        self.fleet.wait_for_progress()
        wait_until(lambda: any(one.began > now for one in self.stream.batches), timeout=PATIENCE_SECONDS)


def place_of(row: dict[str, Any]) -> Place:
    return row["queue"], row["partition"], row["seq"], row["payload"]
