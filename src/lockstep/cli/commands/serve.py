"""`lockstep serve`: the server, in the foreground."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from lockstep.cli.connection import Session, on_session
from lockstep.cli.exits import end_with
from lockstep.cli.hints import program
from lockstep.cli.settings import as_toml, setting_options
from lockstep.config import Config, origins, without_password
from lockstep.errors import LockstepError
from lockstep.exit_codes import FAILED
from lockstep.server.exposure import auth_is_on, is_exposed
from lockstep.storage.postgres.embedded import default_data_dir
from lockstep.storage.postgres.key_files import KEY_FILE
from lockstep.version import VERSION

_PACKAGES = ("httptools", "prometheus_client", "uvicorn", "uvloop")
"""The packages that the server needs besides the library."""


@click.command()
@on_session("dsn", "data_dir")
@click.option("--config", "file", type=click.Path(path_type=Path), help="Settings as TOML: port = 6632")
@click.option("--print-config", is_flag=True, help="Print the settings in force as TOML, and end.")
@setting_options
def serve(session: Session, file: Path | None, print_config: bool, **flags: Any) -> None:
    """Start the server.

    Without --dsn it starts an embedded PostgreSQL. A flag takes precedence over the variable LOCKSTEP_<NAME>, that over
    the file of --config, and that over the default. The server runs until SIGINT (Ctrl-C) or SIGTERM, and finishes
    requests in flight before it exits.
    """
    config = session.settings(flags, file=file)
    if print_config:
        click.echo(as_toml(config, origins(session.given(flags), file=file)), nl=False)
        return
    _run(config)


def _run(config: Config) -> None:
    # Imported here, because no other command needs a web server.
    try:
        from lockstep.server.logs import log_to_stderr
        from lockstep.server.serving import run
        from lockstep.server.serving import serve as serving
    except ModuleNotFoundError as error:
        if error.name not in _PACKAGES:
            raise
        end_with(LockstepError(f"{error.name} is missing: pip install 'lockstep[server]'"), FAILED)
    log_to_stderr(config)
    try:
        run(serving(config, announce=lambda url, _: click.echo(greeting(config, url))))
    except LockstepError as error:
        end_with(error, FAILED)


def greeting(config: Config, url: str) -> str:
    """What the user reads once the server accepts requests."""
    lockstep = program()
    return f"""\
Lockstep {VERSION} listens on {url}
Dashboard: {url}/    Documentation: {url}/docs/
{_where_data_is(config, lockstep)}{_who_may_use_it(config)}

{_first_steps(config, lockstep, url)}
"""


def _first_steps(config: Config, lockstep: str, url: str) -> str:
    if auth_is_on(config):
        return f"""\
It asks who callers are. To make a first key:
  {lockstep} key create NAME --role admin {_database_option(config)}"""
    body = '{"items": [{"queue": "hello", "payload": {"text": "hi"}}]}'
    return f"""\
Try:
  curl -X POST {url}/api/v1/push -d '{body}'
  curl '{url}/api/v1/pop/queue/hello?autoAck=true'
  {lockstep} queues --url {url}
Or see a shop with a pipeline on Spark, which needs Java: {lockstep} demo"""


def _who_may_use_it(config: Config) -> str:
    if not is_exposed(config):
        return ""
    return "\nINSECURE: everybody who can reach it over a network may do everything, without authentication."


def _database_option(config: Config) -> str:
    """The server's database, as an option of another command."""
    if config.dsn is not None:
        return "--dsn-file FILE"
    return f"--data-dir {shlex.quote(str(_data_dir(config)))}"


def _data_dir(config: Config) -> Path:
    return Path(config.data_dir).expanduser().resolve() if config.data_dir else default_data_dir()


def _where_data_is(config: Config, lockstep: str) -> str:
    if config.dsn is None:
        directory = _data_dir(config)
        return (
            f"Its data is in {directory}, in a PostgreSQL of its own.\n"
            f"The key of encrypted queues is in {directory / KEY_FILE}: back it up, apart from the data.\n"
            f'To look into it: psql "$({lockstep} dsn --data-dir {shlex.quote(str(directory))})"'
        )
    if config.dsn.startswith("memory:"):
        return "Its data is in memory, and gone when it ends."
    return f"Its data is in {without_password(config.dsn)}"
