"""The target of a command: a server by its URL, or a store directly by its DSN or data directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec
from click.shell_completion import CompletionItem

from lockstep.cli.output import FORMATS, Format, Output
from lockstep.cli.settings import refuse_secret, safer_ways
from lockstep.config import OF_CLIENTS, Config, has_password, load
from lockstep.errors import Unavailable
from lockstep.secret_files import read_secret

if TYPE_CHECKING:
    from lockstep.client import Client

URL_VARIABLE = "LOCKSTEP_URL"
DEFAULT_URL = "http://localhost:6632"
_TIMEOUT_VARIABLE = "LOCKSTEP_CLIENT_TIMEOUT_SECONDS"
_PATIENCE_SECONDS = 86_400.0

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Session:
    """The values of the shared options, wherever they are on the command line."""

    url: str | None = None
    dsn: str | None = None
    data_dir: str | None = None
    token_file: str | None = None
    ca_file: str | None = None
    format: Format = "table"
    _kept: Client | None = None

    @property
    def output(self) -> Output:
        return Output(self.format)

    @contextmanager
    def client(self, *, begins: bool = False, **settings: Any) -> Iterator[Client]:
        """A client for the target in the options. Settings by name; `begins` as for `database_in`."""
        if self._kept is not None:
            yield self._kept
            return
        self._check()
        of_server = {"token_file": self.token_file, "ca_file": self.ca_file}
        with self._address(begins=begins) as address, _opened(address, of_server, **settings) as client:
            yield client

    @contextmanager
    def staying_connected(self) -> Iterator[None]:
        """All calls within the context share one client."""
        with self.client() as client:
            self._kept = client
            try:
                yield
            finally:
                self._kept = None

    def patient_client(self) -> AbstractContextManager[Client]:
        """A client without a deadline, for work whose duration depends on the amount of data: giving up would only
        start it again.
        """
        if os.environ.get(_TIMEOUT_VARIABLE):
            return self.client()
        return self.client(client_timeout_seconds=_PATIENCE_SECONDS)

    def _address(self, *, begins: bool) -> AbstractContextManager[str]:
        if self.data_dir is not None:
            return database_in(self.data_dir, begins=begins)
        return nullcontext(self.dsn or self.server_url)

    def settings(self, flags: Mapping[str, object] | None = None, *, file: Path | None = None) -> Config:
        """The settings in force, including those from options."""
        self._check()
        config = load(self.given(flags), file=file, unused=OF_CLIENTS)
        # A directory on the command line takes precedence over a DSN from elsewhere, which would otherwise win.
        return config if self.data_dir is None else msgspec.structs.replace(config, dsn=None)

    def given(self, flags: Mapping[str, object] | None = None) -> dict[str, object]:
        """The settings given on the command line."""
        return {"dsn": self.dsn, "data_dir": self.data_dir, **(flags or {})}

    @property
    def server_url(self) -> str:
        return self.named_url or DEFAULT_URL

    @property
    def named_url(self) -> str | None:
        """The server that the user named: by the option or, unless an option names a database, by the variable."""
        if self.url is not None or self.dsn is not None or self.data_dir is not None:
            return self.url
        return os.environ.get(URL_VARIABLE) or None

    def _check(self) -> None:
        if sum(option is not None for option in (self.url, self.dsn, self.data_dir)) > 1:
            raise click.UsageError("--url, --dsn and --data-dir exclude each other: a command works on one of them.")


def _opened(address: str, of_server: Mapping[str, str | None], **settings: Any) -> Client:
    if address.startswith("http"):  # the server has its own engine settings
        settings = {name: value for name, value in settings.items() if name.startswith("client_")}
        settings |= {name: value for name, value in of_server.items() if value is not None}
    elif any(of_server.values()):
        raise click.UsageError("--token-file and --ca-file are for a server: they go with --url.")
    from lockstep.connecting import connect  # here, as what help and mistakes do not need is loaded late

    client = connect(address, **settings)
    try:
        client.open()
    except Unavailable as error:
        client.close()
        if address.startswith("http") and "status" not in error.details:
            error.message += _advice(error)
        raise
    return client


def _advice(error: Unavailable) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in error.message:
        return "; --ca-file names the authorities that vouch for it"
    return "; is a server running there? `lockstep serve` starts one"


@contextmanager
def database_in(data_dir: str, *, begins: bool = False) -> Iterator[str]:
    """The DSN of the PostgreSQL on a data directory: one that is already running, or one that we run within the
    context.

    A missing directory is created for commands with `begins`; for others it is probably a typo.
    """
    from lockstep.storage.postgres.embedded import EmbeddedPostgres, has_database, running_dsn

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


def _remember_dsn(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value is None:
        return
    session = ctx.ensure_object(Session)
    if param.name == "dsn" and has_password(value):
        ways = f"{safer_ways('dsn')} A DSN without the password does, too, with PGPASSFILE or ~/.pgpass."
        raise click.UsageError(f"--dsn with a password is refused: {ways}", ctx)
    dsn = value if param.name == "dsn" else read_secret(value, "--dsn-file")
    if session.dsn not in (None, dsn):
        raise click.UsageError("The database is named twice: --dsn and --dsn-file exclude each other.", ctx)
    session.dsn = dsn


def _shared(*names: str, callback: Callable[..., None] = _remember, **attributes: Any) -> Callable[[F], F]:
    return click.option(*names, callback=callback, expose_value=False, **attributes)


_OPTIONS: dict[str, Callable[[Any], Any]] = {
    "url": _shared("--url", metavar="URL", help=f"The server; default ${URL_VARIABLE}, or else {DEFAULT_URL}."),
    "dsn": _shared("--dsn", metavar="DSN", callback=_remember_dsn, help="The PostgreSQL to use, without a password."),
    "dsn_file": _shared(
        "--dsn-file", metavar="FILE", callback=_remember_dsn, help="File with the DSN of the PostgreSQL to use."
    ),
    "data_dir": _shared(
        "--data-dir",
        metavar="DIR",
        help="Use the embedded PostgreSQL in this directory.",
        shell_complete=lambda _ctx, _param, incomplete: [CompletionItem(incomplete, type="dir")],
    ),
    "token": _shared(
        "--token", hidden=True, callback=refuse_secret, help="Refused: give --token-file, or $LOCKSTEP_TOKEN."
    ),
    "token_file": _shared(
        "--token-file", metavar="FILE", help="File with the API key or token for the server; or $LOCKSTEP_TOKEN_FILE."
    ),
    "ca_file": _shared(
        "--ca-file", metavar="FILE", help="File with the authorities that vouch for an https:// server."
    ),
    "output": _shared("-o", "--output", "format", type=click.Choice(FORMATS), help="How to print; default table."),
}


def shared_options(command: F, *names: str) -> F:
    """The shared options of commands: the named ones, or all."""
    chosen = names or tuple(_OPTIONS)
    if "dsn" in chosen and "dsn_file" not in chosen:
        chosen = (*chosen, "dsn_file")
    if "url" in chosen and "token" not in chosen:
        chosen = (*chosen, "token", "token_file", "ca_file")
    for name in reversed(chosen):
        command = _OPTIONS[name](command)
    return command


def on_session(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds shared options, the named ones or all, and passes the resulting session as the command's first argument."""
    return lambda command: shared_options(click.pass_obj(command), *names)
