"""PostgreSQL's own directory: made whole or not at all, and refused if another major version made it; who may log in;
and the settings of the server on it: durable, modest in memory, reachable only through its socket.

The application logs in as `lockstep`, which owns the database and is not a superuser. Only root and the operating
system's user that runs the server may log in, whoever can enter the socket's directory. They have a superuser,
`postgres`, to look after the cluster. Clusters of older versions trusted every user, and `lockstep` was their
superuser; they are upgraded at their next start.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from lockstep.errors import DataDirectoryVersion, InvalidOption
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.embedded.directory import DATABASE, PORT, ROLE
from lockstep.storage.postgres.embedded.processes import kill_processes, postgres_processes
from lockstep.storage.postgres.embedded.programs import Account, Install, program_failure, run_program, unusable

SUPERUSER = "postgres"
_MAP = "lockstep"
_MADE_BY = "# Written by Lockstep at each start."
_DATABASE_NAME = re.compile(r'datname = "([^"]*)"')

_CREATE_ROLE = f"create role {ROLE} login createrole;\n\ngrant pg_monitor to {ROLE};\n\n"
"""It may create roles, because a migration creates those for applications, and read the statistics that `doctor`
shows."""
CREATE_ALL = f"{_CREATE_ROLE}create database {DATABASE} owner {ROLE};\n\n"
"""What a new cluster needs."""

_FIND_OLD_SUPERUSER = f"select rolname from pg_roles where oid = 10 and rolname = '{ROLE}';\n\n"
# A session cannot rename its own role, and the first role of a cluster stays a superuser.
_RENAME_SUPERUSER = f"""
drop role if exists lockstep_upgrade;

create role lockstep_upgrade superuser;

set session authorization lockstep_upgrade;

alter role {ROLE} rename to {SUPERUSER};

"""
# Whether or not the previous step took effect: an upgrade may have been interrupted.
_ENSURE_ROLE = f"""
drop role if exists lockstep_upgrade;

do $$
begin
    if not exists (select 1 from pg_roles where rolname = '{ROLE}') then
        create role {ROLE};
    end if;
end $$;

alter role {ROLE} login createrole;

grant pg_monitor to {ROLE};

"""
_FIND_DATABASES = """
select datname from pg_database
where datallowconn and datname not in ('template1', 'postgres') and datdba = 10;

"""
UNFINISHED_PREFIX = "pgdata.new-"


def is_initialised(cluster: Path) -> bool:
    """Say whether there is a cluster; a missing or an empty directory does not count."""
    if (cluster / "PG_VERSION").is_file():
        return True
    if cluster.exists() and any(cluster.iterdir()):
        raise unusable(cluster.parent, f"{cluster} holds files, but no PostgreSQL cluster", "Move them away.")
    return False


def require_version(cluster: Path, install: Install) -> None:
    """Raise if another major version of PostgreSQL made the cluster."""
    found = (cluster / "PG_VERSION").read_text().strip()
    if found == install.major:
        return
    raise DataDirectoryVersion(
        f"The cluster {cluster} was made by PostgreSQL {found}, but this Lockstep runs PostgreSQL "
        f"{install.version}. Dump it with PostgreSQL {found} (pg_dump) and restore it into a new data "
        f"directory, convert it with pg_upgrade, or choose another data directory.",
        found=found,
        expected=install.major,
    )


def initialise(cluster: Path, install: Install, account: Account, *, timeout: float) -> None:
    """Make the cluster with our database under another name, and rename it when all of it is on disk."""
    scratch = Path(tempfile.mkdtemp(prefix=UNFINISHED_PREFIX, dir=cluster.parent))
    account.take_over(scratch)
    try:
        _run_initdb(scratch, install, account, timeout=timeout)
        run_single(CREATE_ALL, scratch, install, account, timeout=timeout)
        write_logins(scratch, account, timeout=timeout)
        os.rename(scratch, cluster)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    _sync_directory(cluster.parent)


def remove_unfinished(data_dir: Path) -> None:
    """Remove what an interrupted initialisation left behind."""
    for leftover in data_dir.glob(f"{UNFINISHED_PREFIX}*"):
        # The death signal reaches initdb, but not the backend that it starts.
        kill_processes(postgres_processes(leftover))
        shutil.rmtree(leftover, ignore_errors=True)


def _run_initdb(scratch: Path, install: Install, account: Account, *, timeout: float) -> None:
    program: list[str | Path] = [
        install.program("initdb"),
        f"--pgdata={scratch}",
        f"--username={SUPERUSER}",
        "--encoding=UTF8",
        "--locale=C",
        "--locale-provider=builtin",
        "--builtin-locale=C.UTF-8",
        "--data-checksums",
        "--auth-local=peer",
        "--auth-host=reject",
        "--no-instructions",
    ]
    status, output = run_program(program, account, timeout=timeout)
    if status != 0:
        raise program_failure("initdb", scratch.parent, output)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- Who may log in --------------------------------------------------------------------------------------------


def has_old_logins(cluster: Path) -> bool:
    """Return whether an older version made the cluster, and it has not been upgraded since."""
    return _MADE_BY not in (cluster / "pg_hba.conf").read_text()


def upgrade(cluster: Path, install: Install, account: Account, *, timeout: float) -> None:
    """Change the roles of a cluster of an older version. No server may run on it. An interrupted change continues."""
    if ROLE in run_single(_FIND_OLD_SUPERUSER, cluster, install, account, timeout=timeout):
        run_single(_RENAME_SUPERUSER, cluster, install, account, timeout=timeout)
    run_single(_ENSURE_ROLE, cluster, install, account, timeout=timeout)
    listed = run_single(_FIND_DATABASES, cluster, install, account, timeout=timeout)
    # The last database is Lockstep's: it is done once the others are.
    hand_over = sql.hand_over() + "\n\n"
    for database in sorted(set(_DATABASE_NAME.findall(listed)), key=lambda name: (name == DATABASE, name)):
        run_single(hand_over, cluster, install, account, timeout=timeout, database=database)


def write_logins(cluster: Path, account: Account, *, timeout: float) -> None:
    """Write the rules for logins, unless they are there. Done as the server's user, who owns the directory."""
    for name, text in _files(account).items():
        path = cluster / name
        if path.is_symlink() or path.read_text() != text:
            script = 'umask 077; cat > "$1.new" && mv "$1.new" "$1"'
            status, output = run_program(["/bin/sh", "-c", script, "sh", path], account, timeout=timeout, stdin=text)
            if status != 0:
                raise program_failure(f"writing {path}", cluster.parent, output)


def _files(account: Account) -> Mapping[str, str]:
    users = dict.fromkeys((account.name, "root"))
    logins = "".join(f'{_MAP} "{user}" all\n' for user in users)
    return {
        "pg_ident.conf": f"{_MADE_BY}\n# Those who may log in over the socket, as any role.\n{logins}",
        "pg_hba.conf": f"{_MADE_BY}\nlocal all all peer map={_MAP}\nlocal replication all peer map={_MAP}\n",
    }


def run_single(
    commands: str, cluster: Path, install: Install, account: Account, *, timeout: float, database: str = "template1"
) -> str:
    """Run commands, each followed by an empty line, as the superuser of a cluster that no server runs on."""
    # A single-user backend needs no socket, and ends with a checkpoint: all is on disk when it returns.
    program: list[str | Path] = [install.program("postgres"), "--single", "-j", "-D", cluster, database]
    status, output = run_program(program, account, timeout=timeout, stdin=commands)
    # It goes on after an error and ends with 0.
    if status != 0 or re.search("^.*(ERROR|FATAL):", output, re.MULTILINE):
        raise program_failure("A change of the cluster", cluster.parent, output)
    return output


# --- Settings --------------------------------------------------------------------------------------------------

MEBIBYTE = 1 << 20
SHARED_BUFFERS_MAX_MB = 256
SHARED_BUFFERS_MIN_MB = 16
SHARED_BUFFERS_PART_OF_MEMORY = 8
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

DEFAULTS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "max_connections": "200",
    "huge_pages": "try",
    "jit": "off",
    "wal_compression": "off",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "15min",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # We look for reasons in the log, in English.
    "lc_messages": "C",
    # A statement that fails may carry a payload, and payloads do not belong into logs.
    "log_min_error_statement": "panic",
}

# The supervisor depends on these.
RESERVED = frozenset(
    {
        "config_file",
        "data_directory",
        "external_pid_file",
        "hba_file",
        "ident_file",
        "lc_messages",
        "listen_addresses",
        "log_destination",
        "logging_collector",
        "port",
        "unix_socket_directories",
        "unix_socket_permissions",
    }
)


def check_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the caller's settings; raise if one of them is not the caller's to set."""
    reserved = sorted(name for name in settings if name.lower() in RESERVED)
    if reserved:
        raise InvalidOption(f"The embedded PostgreSQL sets these itself: {', '.join(reserved)}.")
    return dict(settings)


def server_program(install: Install, cluster: Path, socket_dir: Path, settings: Mapping[str, str]) -> list[str | Path]:
    """Return the command line of the server."""
    program: list[str | Path] = [install.program("postgres"), "-D", cluster]
    for name, value in _all_settings(socket_dir, settings).items():
        program += ["-c", f"{name}={value}"]
    return program


def _all_settings(socket_dir: Path, settings: Mapping[str, str]) -> dict[str, str]:
    return {
        **DEFAULTS,
        "shared_buffers": f"{shared_buffers_mb(memory_bytes())}MB",
        **settings,
        "listen_addresses": "",
        "port": str(PORT),
        "unix_socket_directories": str(socket_dir),
        "unix_socket_permissions": "0700",
        "log_destination": "stderr",
        "logging_collector": "off",
    }


def shared_buffers_mb(memory: int) -> int:
    """Return the size of PostgreSQL's own cache for a machine with that many bytes of memory."""
    part = memory // MEBIBYTE // SHARED_BUFFERS_PART_OF_MEMORY
    return max(SHARED_BUFFERS_MIN_MB, min(part, SHARED_BUFFERS_MAX_MB))


def memory_bytes() -> int:
    """Return the memory that we may use: the machine's, or the container's if that is less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_cgroup_limits()])


def _cgroup_limits() -> list[int]:
    texts = [Path(path).read_text().strip() for path in CGROUP_LIMITS if os.access(path, os.R_OK)]
    return [int(text) for text in texts if text.isdecimal()]
