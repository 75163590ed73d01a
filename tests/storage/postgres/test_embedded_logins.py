"""Who may log in to the embedded PostgreSQL, and what the application may do there."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from lockstep.errors import EmbeddedError
from lockstep.storage.postgres.embedded import EmbeddedPostgres, programs
from lockstep.storage.postgres.embedded.cluster import write_logins
from lockstep.storage.postgres.embedded.programs import USER_VARIABLE, bundled_install, run_program, server_account
from support.databases import scratch_directory
from support.embedded_tools import ORDINARY_USER, SMALL, add_cluster, is_root, query


@pytest.fixture
def data_dir() -> Iterator[Path]:
    with scratch_directory() as directory:
        yield add_cluster(directory / "data")


FORBIDDEN = [
    "copy (select 1) to program 'true'",
    "select pg_read_file('/etc/passwd')",
    "alter system set fsync = off",
    "create role other superuser",
    "create extension file_fdw",
    "alter role postgres password 'x'",
    "set session_authorization = 'postgres'",
    "create function f() returns int language internal as 'int4pl'",
]


def test_application_is_no_superuser(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir, settings=SMALL) as server:
        assert query(server.dsn, "select rolname, rolsuper from pg_roles where rolname = current_user") == [
            ("lockstep", False)
        ]
        assert query(server.dsn, "select datdba::regrole::text from pg_database where datname = 'lockstep'") == [
            ("lockstep",)
        ]
        for statement in FORBIDDEN:
            with pytest.raises(psycopg.Error):
                query(server.dsn, statement)
        query(server.dsn, "create role app nologin")
        assert query(server.superuser_dsn, "select rolsuper from pg_roles where rolname = current_user") == [(True,)]


@pytest.mark.skipif(not is_root(), reason="only root can try it as another user")
def test_other_users_are_not_let_in_even_where_they_reach_the_socket(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir, settings=SMALL) as server:
        sockets = data_dir / "run"
        sockets.chmod(0o755)
        (sockets / ".s.PGSQL.5432").chmod(0o777)
        psql = bundled_install().program("psql")
        for role in ("lockstep", "postgres"):
            address = server.dsn.replace("//lockstep@", f"//{role}@")
            asked = [psql, "-X", "-w", "-c", "select 1", address]
            done = subprocess.run(asked, user=ORDINARY_USER, capture_output=True, text=True, cwd="/", check=False)
            assert done.returncode != 0
            assert "Peer authentication failed" in done.stderr, done.stderr


def old_logins(data_dir: Path) -> None:
    """Make of a cluster one of an older version: one superuser, and everybody is trusted."""
    cluster = data_dir / "pgdata"
    account, install = server_account(cluster), bundled_install()
    install = programs.reachable_install(install, account)
    (cluster / "pg_hba.conf").write_text("local all all trust\n")
    (cluster / "pg_ident.conf").write_text("")
    with_settings = [install.program("postgres"), "--single", "-j", "-D", cluster, "lockstep"]
    commands = [
        "create role builder superuser",
        "reassign owned by lockstep to builder",
        "drop owned by lockstep",
        "alter database lockstep owner to builder",
        "drop role lockstep",
        "set session authorization builder",
        "alter role postgres rename to lockstep",
        "alter database lockstep owner to lockstep",
        "create schema app authorization lockstep",
        "create table app.item (id bigserial primary key, name text)",
        "create view app.items as select * from app.item",
        "create type app.mood as enum ('fine')",
        "create function app.one() returns int language sql as 'select 1'",
        "alter table app.item owner to lockstep",
        "alter view app.items owner to lockstep",
        "alter type app.mood owner to lockstep",
        "alter function app.one() owner to lockstep",
        "alter table note owner to lockstep",
    ]
    status, output = run_program(with_settings, account, timeout=60, stdin=";\n\n".join(commands) + ";\n\n")
    assert (status, "ERROR" in output) == (0, False), output


def test_cluster_of_an_older_version_is_changed_at_its_start(data_dir: Path) -> None:
    old_logins(data_dir)
    told: list[str] = []
    for _ in range(2):
        with EmbeddedPostgres(data_dir, settings=SMALL, on_progress=told.append) as server:
            own = "select count(*) from pg_roles where rolname = 'lockstep' and not rolsuper and oid <> 10"
            assert query(server.dsn, own) == [(1,)]
            query(server.dsn, "insert into app.item (name) values ('x')")
            query(server.dsn, "alter table app.item add if not exists more int")
            query(server.dsn, "alter table note add if not exists more int")
            query(server.dsn, "create or replace view app.items as select * from app.item")
            query(server.dsn, "alter type app.mood add value if not exists 'better'")
            query(server.dsn, "create or replace function app.one() returns int language sql as 'select 2'")
            with pytest.raises(psycopg.Error):
                query(server.dsn, "alter system set fsync = off")
    assert len([line for line in told if "rights of a superuser" in line]) == 1


def test_logins_are_written_again_where_somebody_changed_it(data_dir: Path) -> None:
    cluster = data_dir / "pgdata"
    account = server_account(cluster)
    (cluster / "pg_ident.conf").write_text("lockstep eve all\n")
    write_logins(cluster, account, timeout=60)
    assert "eve" not in (cluster / "pg_ident.conf").read_text()
    assert (cluster / "pg_ident.conf").stat().st_uid == account.uid


@pytest.mark.skipif(not is_root(), reason="an ordinary user runs it as itself")
def test_root_does_not_fall_back_to_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(USER_VARIABLE, raising=False)
    real = pwd.getpwnam

    def only_nobody(name: str) -> pwd.struct_passwd:
        if name != "nobody":
            raise KeyError(name)
        return real(name)

    monkeypatch.setattr(programs.pwd, "getpwnam", only_nobody)
    with pytest.raises(EmbeddedError, match="useradd"):
        server_account(tmp_path / "none")
    assert os.geteuid() == 0
