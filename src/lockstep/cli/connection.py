"""What a command works on: a server by its URL, or directly the store of a DSN or of a data directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from click.shell_completion import CompletionItem

from lockstep.cli.output import FORMATS, Format, Output
from lockstep.client import Client
from lockstep.config import Config, load
from lockstep.connecting import connect
from lockstep.errors import Unavailable
from lockstep.storage.postgres.embedded import EmbeddedPostgres, has_database, running_dsn

URL_VARIABLE = "LOCKSTEP_URL"
DEFAULT_URL = "http://localhost:6632"
_TIMEOUT_VARIABLE = "LOCKSTEP_CLIENT_TIMEOUT_SECONDS"
_PATIENCE_SECONDS = 86_400.0

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Session:
    """What the options that all commands share say, wherever on the command line they stand."""

    url: str | None = None
    dsn: str | None = None
    data_dir: str | None = None
    format: Format = "table"

    @property
    def output(self) -> Output:
        return Output(self.format)

    @contextmanager
    def client(self, *, begins: bool = False, **settings: Any) -> Iterator[Client]:
        """A client on what the options name. Settings by name; `begins` as for `database_in`."""
        self._check()
        with self._address(begins=begins) as address, _opened(address, **settings) as client:
            yield client

    def patient_client(self) -> AbstractContextManager[Client]:
        """For work that takes as long as there is data. A client that gives up would only begin it once more."""
        if os.environ.get(_TIMEOUT_VARIABLE):
            return self.client()
        return self.client(client_timeout_seconds=_PATIENCE_SECONDS)

    def _address(self, *, begins: bool) -> AbstractContextManager[str]:
        if self.data_dir is not None:
            return database_in(self.data_dir, begins=begins)
        return nullcontext(self.dsn or self.server_url)

    def settings(self, flags: Mapping[str, object] | None = None, *, file: Path | None = None) -> Config:
        """The settings in force, with the options among them."""
        self._check()
        config = load(self.given(flags), file=file)
        # A directory on the command line is stronger than a DSN from anywhere else, which would win over it.
        return config if self.data_dir is None else msgspec.structs.replace(config, dsn=None)

    def given(self, flags: Mapping[str, object] | None = None) -> dict[str, object]:
        """The settings that stand on the command line."""
        return {"dsn": self.dsn, "data_dir": self.data_dir, **(flags or {})}

    @property
    def server_url(self) -> str:
        return self.named_url or DEFAULT_URL

    @property
    def named_url(self) -> str | None:
        """The server that the user named: by the option, or by the variable unless an option names a database."""
        if self.url is not None or self.dsn is not None or self.data_dir is not None:
            return self.url
        return os.environ.get(URL_VARIABLE) or None

    def _check(self) -> None:
        if sum(option is not None for option in (self.url, self.dsn, self.data_dir)) > 1:
            raise click.UsageError("--url, --dsn and --data-dir exclude each other: a command works on one of them.")


def _opened(address: str, **settings: Any) -> Client:
    if address.startswith("http"):  # the engine's settings are the server's business there
        settings = {name: value for name, value in settings.items() if name.startswith("client_")}
    client = connect(address, **settings)
    try:
        client.open()
    except Unavailable as error:
        client.close()
        if address.startswith("http") and "status" not in error.details:
            error.message += "; is a server running there? `lockstep serve` starts one"
        raise
    return client


@contextmanager
def database_in(data_dir: str, *, begins: bool = False) -> Iterator[str]:
    """The DSN of the PostgreSQL on a data directory: of whoever runs one there, or of one that we run meanwhile.

    Where there is none yet, one is made for a command that `begins` something; to others it is a mistyped name.
    """
    running = running_dsn(data_dir)
    if running is not None:
        yield running
        return
    if not begins and not has_database(data_dir):
        raise click.UsageError(f"There is no database in {data_dir}; `lockstep serve --data-dir` makes one.")
    with EmbeddedPostgres(data_dir) as server:
        yield server.dsn


def _remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value is not None:
        setattr(ctx.ensure_object(Session), str(param.name), value)


def _shared(*names: str, **attributes: Any) -> Callable[[F], F]:
    return click.option(*names, callback=_remember, expose_value=False, **attributes)


_OPTIONS: dict[str, Callable[[Any], Any]] = {
    "url": _shared("--url", metavar="URL", help=f"The server; default ${URL_VARIABLE}, or else {DEFAULT_URL}."),
    "dsn": _shared("--dsn", metavar="DSN", help="The PostgreSQL to use."),
    "data_dir": _shared(
        "--data-dir",
        metavar="DIR",
        help="The directory whose embedded PostgreSQL to use.",
        shell_complete=lambda _ctx, _param, incomplete: [CompletionItem(incomplete, type="dir")],
    ),
    "output": _shared("-o", "--output", "format", type=click.Choice(FORMATS), help="How to print; default table."),
}


def shared_options(command: F, *names: str) -> F:
    """The options that commands share: those named, or all."""
    for name in reversed(names or tuple(_OPTIONS)):
        command = _OPTIONS[name](command)
    return command


def on_session(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Shared options, those named or all, and as the command's first argument the session that they make."""
    return lambda command: shared_options(click.pass_obj(command), *names)
