"""A PostgreSQL that only takes TLS: every way to it follows the `sslmode` of its address.

The embedded PostgreSQL speaks no TLS, so this needs the programs of another one; Debian keeps them in
/usr/lib/postgresql.
"""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

import lockstep
from lockstep.cli.checks.database import check_database
from lockstep.config import Config
from lockstep.errors import LockstepError, Unavailable
from lockstep.spark.database import Access
from support.certificates import Authority
from support.databases import scratch_directory

Way = Callable[[str], None]

_PLACES = Path("/usr/lib/postgresql")


def _programs() -> Path | None:
    """The newest PostgreSQL of the system that was built with TLS."""
    found = sorted(_PLACES.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]), reverse=True)
    for initdb in found:
        built = subprocess.run(
            [initdb.with_name("pg_config"), "--configure"], capture_output=True, text=True, check=False
        )
        if "openssl" in built.stdout:
            return initdb.parent
    return None


def _owner() -> str | None:
    """PostgreSQL does not run as root."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        pytest.skip("PostgreSQL does not run as root, and there is no user postgres")


class Guarded:
    """A PostgreSQL that refuses connections without TLS, and whom its certificate is signed by."""

    def __init__(self, port: int, ca_file: Path) -> None:
        self.port, self.ca_file = port, ca_file

    def dsn(self, host: str = "localhost", **options: object) -> str:
        query = "&".join([f"{name}={value}" for name, value in options.items()])
        return f"postgresql://tester:sesame@{host}:{self.port}/postgres?{query}"


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    programs = _programs()
    if programs is None:
        pytest.skip(f"there is no PostgreSQL with TLS in {_PLACES} (apt-get install postgresql)")
    owner = _owner()
    with scratch_directory() as directory:
        authority = Authority(directory)
        cert_file, key_file = authority.sign()
        data, port = directory / "data", _free_port()
        if owner is not None:
            for path in (directory, cert_file, key_file):
                os.chown(path, pwd.getpwnam(owner).pw_uid, -1)
        (directory / "password").write_text("sesame")
        common = {"user": owner, "check": True, "capture_output": True, "cwd": directory}
        init = ["-D", data, "-U", "tester", "--pwfile", directory / "password", "-A", "scram-sha-256", "-E", "UTF8"]
        subprocess.run([programs / "initdb", *init, "--no-sync"], **common)
        (data / "pg_hba.conf").write_text("hostssl all all 127.0.0.1/32 scram-sha-256\n")
        options = f"-p {port} -c ssl=on -c ssl_cert_file={cert_file} -c ssl_key_file={key_file} -c fsync=off"
        options += f" -c listen_addresses=127.0.0.1 -c unix_socket_directories={directory}"
        control = [programs / "pg_ctl", "-D", data, "-w", "-l", directory / "log"]
        subprocess.run([*control, "-o", options, "start"], **common)
        try:
            yield Guarded(port, authority.ca_file)
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], **common)


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _by_asyncpg(dsn: str) -> None:
    with lockstep.connect(dsn, connect_attempts_max=1, connect_timeout_seconds=10) as client:
        client.push("tls", 1)
        client.pop("tls", auto_ack=True)


def _by_spark(dsn: str) -> None:
    with Access(dsn=dsn).connect() as connection:
        encrypted = connection.execute("select ssl from pg_stat_ssl where pid = pg_backend_pid()").fetchone()
        assert encrypted == (True,)


def _by_doctor(dsn: str) -> None:
    first = next(iter(check_database(dsn, Config())))
    if first.level != "ok":
        raise Unavailable(first.text)


WAYS = [_by_asyncpg, _by_spark, _by_doctor]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
@pytest.mark.parametrize("mode", [None, "prefer", "require", "verify-ca", "verify-full"])
def test_modes_with_tls_get_in(guarded: Guarded, way: Way, host: str, mode: str | None) -> None:
    options = {} if mode is None else {"sslmode": mode}
    if mode in ("verify-ca", "verify-full"):
        options["sslrootcert"] = str(guarded.ca_file)
    way(guarded.dsn(host, **options))


@pytest.mark.parametrize("way", WAYS)
def test_mode_without_tls_does_not_get_in(guarded: Guarded, way: Way) -> None:
    with pytest.raises((LockstepError, psycopg.Error)) as refused:
        way(guarded.dsn(sslmode="disable"))
    assert "sesame" not in str(refused.value)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", ["verify-ca", "verify-full"])
def test_server_with_a_certificate_of_another_authority_is_not_trusted(
    guarded: Guarded, tmp_path: Path, way: Way, mode: str
) -> None:
    other = Authority(tmp_path).ca_file
    with pytest.raises((LockstepError, psycopg.Error)) as refused:
        way(guarded.dsn(sslmode=mode, sslrootcert=other))
    assert "sesame" not in str(refused.value)


@pytest.mark.parametrize("way", WAYS)
def test_several_hosts_follow_the_mode(guarded: Guarded, way: Way) -> None:
    hosts = f"localhost:{_free_port()},localhost"
    way(guarded.dsn(hosts, sslmode="verify-full", sslrootcert=guarded.ca_file))
    with pytest.raises((LockstepError, psycopg.Error)):
        way(guarded.dsn(hosts, sslmode="disable"))
