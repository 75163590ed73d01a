"""Who may log in to the cluster, and as whom.

The application logs in as `lockstep`, which owns the database and is not a superuser. Only root and the operating
system's user that runs the server may log in, whoever can enter the socket's directory. They have a superuser,
`postgres`, to look after the cluster. Clusters of older versions trusted every user, and `lockstep` was their
superuser; they are upgraded at their next start.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from lockstep.storage.postgres.embedded.directory import DATABASE, ROLE
from lockstep.storage.postgres.embedded.programs import Account, Install, program_failure, run_program

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


def has_old_logins(cluster: Path) -> bool:
    """Return whether an older version made the cluster, and it has not been upgraded since."""
    return _MADE_BY not in (cluster / "pg_hba.conf").read_text()


def upgrade(cluster: Path, install: Install, account: Account, *, timeout: float) -> None:
    """Change the roles of a cluster of an older version. No server may run on it. An interrupted change continues."""
    if ROLE in run_single(_FIND_OLD_SUPERUSER, cluster, install, account, timeout=timeout):
        run_single(_RENAME_SUPERUSER, cluster, install, account, timeout=timeout)
    run_single(_ENSURE_ROLE, cluster, install, account, timeout=timeout)
    listed = run_single(_FIND_DATABASES, cluster, install, account, timeout=timeout)
    # The last one is that of Lockstep: it is done when the others are.
    hand_over = Path(__file__).with_name("hand_over.sql").read_text() + "\n\n"
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
