"""Every setting of a server as an option of the command line, and the settings in force as TOML."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click
from msgspec import Meta

from lockstep.config import ENVIRONMENT_PREFIX, SECRETS, Config
from lockstep.secret_files import FILE_SUFFIX

F = TypeVar("F", bound=Callable[..., Any])

_OF_CLIENTS = "client_"
_SHARED = ("dsn", "data_dir", "token", "ca_file")
"""These are already options of all commands, or of those that use a server."""


def server_settings() -> list[str]:
    """The settings that are options of `serve`, besides the shared ones."""
    return [name for name in Config.__struct_fields__ if not name.startswith(_OF_CLIENTS) and name not in _SHARED]


def setting_options(command: F) -> F:
    """An option for each setting. Values are text here; config.py validates them."""
    hints = get_type_hints(Config, include_extras=True)
    for name in reversed(server_settings()):
        option = _file_option if name in SECRETS else _option
        command = option(name, hints[name])(command)
    return command


def _file_option(name: str, hint: Any) -> Callable[[F], F]:
    """Secrets come from files. A secret on the command line is refused, with the reason."""
    flag = name.replace("_", "-")
    refused = click.option(
        f"--{flag}", hidden=True, expose_value=False, callback=refuse_secret, help=f"Refused: give --{flag}-file."
    )
    help_text = f"File with this secret: {_description(hint)}"
    in_file = click.option(f"--{flag}-file", f"{name}{FILE_SUFFIX}", metavar="FILE", help=help_text)
    return lambda command: in_file(refused(command))


def refuse_secret(ctx: click.Context, param: click.Parameter, value: object) -> None:
    """The callback of an option that would take a secret. It does not repeat the value."""
    if value is None:
        return
    name = str(param.name)
    raise click.UsageError(f"--{name.replace('_', '-')} is refused: {safer_ways(name)}", ctx)


def safer_ways(name: str) -> str:
    """Why a secret must not be on the command line, and where to put it."""
    flag, variable = f"--{name.replace('_', '-')}-file", f"{ENVIRONMENT_PREFIX}{name.upper()}"
    return (
        "every user of this machine can read command lines in the list of processes. "
        f"Use {flag}, {variable}{FILE_SUFFIX.upper()} or {variable}."
    )


def _option(name: str, hint: Any) -> Callable[[F], F]:
    flag = name.replace("_", "-")
    default = getattr(Config(), name)
    help_text = f"{_description(hint)} Default {_toml(default)}." if default is not None else _description(hint)
    if isinstance(default, bool):
        return click.option(f"--{flag}/--no-{flag}", name, default=None, help=help_text)
    return click.option(f"--{flag}", name, metavar=_metavar(hint), help=help_text, shell_complete=_complete(hint))


def _description(hint: Any) -> str:
    return next(meta.description for meta in _metas(hint) if meta.description)


def _metas(hint: Any) -> Iterator[Meta]:
    if get_origin(hint) is Annotated:
        kind, *metas = get_args(hint)
        yield from (meta for meta in metas if isinstance(meta, Meta))
        yield from _metas(kind)


def _complete(hint: Any) -> Callable[..., list[str]]:
    """Completes the values of settings that have only a few."""
    values = _choices(hint)
    return lambda _ctx, _param, incomplete: [value for value in values if value.startswith(incomplete)]


def _choices(hint: Any) -> tuple[str, ...]:
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return get_args(hint) if get_origin(hint) is Literal else ()


def _metavar(hint: Any) -> str:
    if choices := _choices(hint):
        return "|".join(choices)
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, UnionType):
        hint = next(kind for kind in get_args(hint) if kind is not NoneType)
    return {int: "N", float: "NUMBER"}.get(hint, "TEXT")


def as_toml(config: Config, origins: Mapping[str, str]) -> str:
    """The settings as a file for `--config`, each with its source; secrets are hidden."""
    return "".join(f"{_line(name, value, origins)}\n" for name, value in config.shown().items())


def _line(name: str, value: Any, origins: Mapping[str, str]) -> str:
    origin = origins.get(name, "default")
    origin = f"--{origin.replace('_', '-')}" if origin in (name, f"{name}{FILE_SUFFIX}") else origin
    if name in SECRETS and value is not None:
        return f"# {name}: hidden  # {origin}"
    return f"# {name}: not set" if value is None else f"{name} = {_toml(value)}  # {origin}"


def _toml(value: Any) -> str:
    # Strings, numbers and booleans are written alike in JSON and TOML.
    return json.dumps(value, ensure_ascii=False)
