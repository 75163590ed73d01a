"""A primary and its standby, from the binaries of the embedded PostgreSQL, and what may happen to them."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import psycopg

from lockstep.storage.postgres.embedded.programs import bundled_install, reachable_install, server_account
from support.embedded_tools import query, template_cluster, wait_until

_SETTINGS = {"listen_addresses": "", "shared_buffers": "32MB", "max_connections": "100", "wal_keep_size": "64MB"}
_PATIENCE_SECONDS = 60.0

RecoveryTarget = Literal["time", "lsn", "xid", "name"]
_TARGETS: dict[RecoveryTarget, str] = {
    "time": "select clock_timestamp()::text",
    "lsn": "select pg_current_wal_lsn()::text",
    "xid": "select pg_current_xact_id()::text",
    "name": "select 'here' from pg_create_restore_point('here')",
}
"""What a running primary says, so that a recovery can stop there later."""


class Node:
    """A PostgreSQL server with a socket directory of its own."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.data = folder / name
        self.sockets = folder / f"{name}.sockets"
        self._log = folder / f"{name}.log"
        self._account = server_account(folder / "none")
        self._install = reachable_install(bundled_install(), self._account)
        self.sockets.mkdir()
        self.own(self.sockets)
        self.own(folder)

    def own(self, path: Path) -> None:
        """Let the server's user write there."""
        self._account.take_over(path)

    @property
    def dsn(self) -> str:
        return f"postgresql://postgres@/lockstep?host={self.sockets}"

    def run(self, program: str, *arguments: str | Path) -> None:
        switch: dict[str, Any] = {}
        if self._account.is_other:
            switch = {"user": self._account.uid, "group": self._account.gid, "extra_groups": self._account.groups}
        command = [self._install.program(program), *arguments]
        done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False, **switch)
        assert done.returncode == 0, f"{program}: {done.stdout}{done.stderr}"

    def start(self, **settings: str) -> None:
        given = {**_SETTINGS, "unix_socket_directories": str(self.sockets), **settings}
        options = " ".join(f"-c {name}='{value}'" for name, value in given.items())
        self._control("start", "-l", self._log, "-o", options)

    def stop(self, mode: str = "fast") -> None:
        if (self.data / "postmaster.pid").exists():
            self._control("stop", "-m", mode)

    def promote(self) -> None:
        self._control("promote")

    def recover(self, archive: Path, kind: RecoveryTarget, target: str) -> None:
        """Start a base backup, replay the archived log up to the target, and go on from there on a new timeline."""
        signal = self.data / "recovery.signal"
        signal.touch()
        self.own(signal)
        self.start(
            restore_command=f"cp {archive}/%f %p",
            recovery_target_action="promote",
            **{f"recovery_target_{kind}": target},
        )
        wait_until(lambda: self.query("select pg_is_in_recovery()") == [(False,)], timeout=_PATIENCE_SECONDS)

    def copy(self, to: Node, *options: str) -> None:
        """A base backup of this running server, in the other's place."""
        to.run("pg_basebackup", "-d", self.dsn, "-D", to.data, "-c", "fast", *options)

    def _control(self, verb: str, *options: str | Path) -> None:
        self.run("pg_ctl", "-w", "-t", str(int(_PATIENCE_SECONDS)), "-D", self.data, verb, *options)

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        return query(self.dsn, statement)


class Pair:
    """A primary, and a standby that follows it."""

    def __init__(self, folder: Path, *, synchronous: bool = False) -> None:
        self.folder = folder
        self.lost_at = 0.0
        """When the last primary was lost (`time.monotonic`): nothing was acknowledged by it later."""
        self._archive = folder / "archive"
        self.primary, self.standby = Node(folder, "a"), Node(folder, "b")
        subprocess.run(["cp", "-a", template_cluster(), self.primary.data], check=True)
        self.primary.start()
        self.primary.copy(self.standby, "-R")
        self.standby.start()
        self._nodes = [self.primary, self.standby]
        if synchronous:
            self.wait_for_standby()
            self.be_synchronous()

    @property
    def dsn(self) -> str:
        """One address for both."""
        hosts = ",".join(str(node.sockets) for node in self._nodes[:2])
        return f"postgresql://postgres@/lockstep?host={hosts}&target_session_attrs=read-write"

    def cut(self) -> None:
        """From now on the standby gets nothing any more; what was committed before, it has."""
        self.wait_for_standby()
        self.standby.query("alter system set primary_conninfo = ''")
        self.standby.query("select pg_reload_conf()")
        wait_until(lambda: self.primary.query("select 1 from pg_stat_replication") == [], timeout=_PATIENCE_SECONDS)

    def lose_primary(self) -> None:
        self.primary.stop("immediate")
        self.lost_at = time.monotonic()

    def fail_over(self, *, meanwhile: Callable[[], object] | None = None) -> None:
        """The primary is lost in this moment, and the standby takes its place."""
        self.lose_primary()
        if meanwhile is not None:
            meanwhile()
        self.standby.promote()
        self.standby.query("alter system reset synchronous_standby_names")
        self.standby.query("select pg_reload_conf()")
        self.primary, self.standby = self.standby, self.primary

    def add_standby(self) -> None:
        """A new standby in the place of the server that is lost."""
        shutil.rmtree(self.standby.data)
        self.primary.copy(self.standby, "-R")
        self.standby.start()
        self.wait_for_standby()

    def be_synchronous(self) -> None:
        """From now on nothing is acknowledged that the standby has not."""
        self.primary.query("alter system set synchronous_standby_names = '*'")
        self.primary.query("select pg_reload_conf()")

    def back_up(self) -> Node:
        """A copy of the primary as it is now."""
        backup = Node(self.folder, f"backup-{len(self._nodes)}")
        self._nodes.append(backup)
        self.primary.copy(backup)
        return backup

    def restore(self, backup: Node, *, meanwhile: Callable[[], object] | None = None) -> None:
        """Put a copy in the primary's place: it has its address, and goes on with the same timeline."""
        self._replace(backup, backup.start, meanwhile)

    def archive(self) -> None:
        """From now on keep the write-ahead log for a recovery."""
        self._archive.mkdir()
        self.primary.own(self._archive)
        self.primary.stop()
        self.primary.start(archive_mode="on", archive_command=f"cp %p {self._archive}/%f")

    def timeline(self) -> int:
        [[number]] = self.primary.query("select left(pg_walfile_name(pg_current_wal_lsn()), 8)")
        return int(number, 16)

    def point(self, kind: RecoveryTarget) -> str:
        """Where the primary is now, as a target of `recover`."""
        [[target]] = self.primary.query(_TARGETS[kind])
        return str(target)

    def recover(
        self, backup: Node, kind: RecoveryTarget, target: str, *, meanwhile: Callable[[], object] | None = None
    ) -> None:
        """Put a copy in the primary's place that goes on from a point after the copy, on a new timeline."""
        [[last]] = self.primary.query("select pg_walfile_name(pg_switch_wal())")
        archived = f"select last_archived_wal >= '{last}' from pg_stat_archiver"
        wait_until(lambda: self.primary.query(archived) == [(True,)], timeout=_PATIENCE_SECONDS)
        self._replace(backup, lambda: backup.recover(self._archive, kind, target), meanwhile)

    def _replace(self, backup: Node, start: Callable[[], object], meanwhile: Callable[[], object] | None) -> None:
        self.lose_primary()
        if meanwhile is not None:
            meanwhile()
        backup.sockets = self.primary.sockets
        start()
        self.primary = backup

    def close(self) -> None:
        for node in self._nodes:
            node.stop("immediate")

    def wait_for_standby(self) -> None:
        """Until it has all that is committed now."""
        [[lsn]] = self.primary.query("select pg_current_wal_lsn()")

        def has_it() -> bool:
            try:
                return self.standby.query(f"select pg_last_wal_replay_lsn() >= '{lsn}'") == [(True,)]
            except psycopg.OperationalError:
                return False

        wait_until(has_it, timeout=_PATIENCE_SECONDS)
