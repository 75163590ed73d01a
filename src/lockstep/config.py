"""Every setting, its limits, its default and what it is for, in one table; and where a value comes from.

A value given in code or by a flag wins over the environment variable `LOCKSTEP_<NAME>`, that over the TOML
file, that over the default. A name that is not in the table is an error wherever it stands.
"""

from __future__ import annotations

import os
import tomllib
from base64 import b64decode
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, get_type_hints
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec
from msgspec import Meta

from lockstep.errors import InvalidOption

ENVIRONMENT_PREFIX = "LOCKSTEP_"
OTHER_VARIABLES = frozenset({"LOCKSTEP_TEST_DSN", "LOCKSTEP_POSTGRES_USER", "LOCKSTEP_SOAK"})
"""Environment variables that begin like settings and are none."""

ENCRYPTION_KEY_BYTES = 32
_HIDDEN = "***"
_KIB, _MIB = 1024, 1024**2
# A message id has 16 bits for the place in its segment.
_SEGMENT_MESSAGES = 65_536

# PostgreSQL takes no value over 1 GiB, and a segment has to fit into one with all that surrounds it.
_Bytes = Annotated[int, Meta(ge=1, le=512 * _MIB)]
_Count = Annotated[int, Meta(ge=1, le=1_000_000)]
_Length = Annotated[int, Meta(ge=1, le=_MIB)]
_Seconds = Annotated[float, Meta(ge=0.001, le=86_400)]


def _help(text: str) -> Meta:
    return Meta(description=text)


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings. Units and limits come last in the names."""

    dsn: Annotated[str | None, _help("PostgreSQL to use; without one, an embedded PostgreSQL is started.")] = None
    data_dir: Annotated[str | None, _help("Data directory of the embedded PostgreSQL.")] = None

    payload_bytes_max: Annotated[_Bytes, _help("Largest payload of one message.")] = 16 * _MIB
    push_messages_max: Annotated[int, Meta(ge=1, le=_SEGMENT_MESSAGES), _help("Most messages of one push call.")] = (
        10_000
    )
    push_bytes_max: Annotated[_Bytes, _help("Most bytes of payloads and headers of one push call.")] = 64 * _MIB
    pop_messages_max: Annotated[_Count, _help("Largest batch of one pop request.")] = 10_000
    pop_partitions_max: Annotated[_Count, _help("Most partitions that one pop request may claim.")] = 1_000
    ack_items_max: Annotated[_Count, _help("Most acks, or renewals, of one call.")] = 10_000
    # Not below 1,000, which is the page that the verbs ask for where nobody says how long it should be.
    page_items_max: Annotated[int, Meta(ge=1_000, le=1_000_000), _help("Longest page of any listing.")] = 1_000
    error_text_length_max: Annotated[_Length, _help("An error text that is longer is cut.")] = 10_000
    reference_length_max: Annotated[_Length, _help("Longest reference of a message.")] = 2_000
    kind_length_max: Annotated[_Length, _help("Longest kind of a message.")] = 255
    encoding_length_max: Annotated[_Length, _help("Longest encoding of a message.")] = 64
    headers_bytes_max: Annotated[_Bytes, _help("Most bytes of a message's encoded headers.")] = 16 * _KIB

    segment_cache_bytes_max: Annotated[
        int, Meta(ge=0, le=2**40), _help("Memory for segments that were read or written lately.")
    ] = 128 * _MIB
    partition_cache_entries_max: Annotated[
        int, Meta(ge=1, le=100_000_000), _help("Partitions whose ids are remembered by name.")
    ] = 1_000_000
    pool_connections_max: Annotated[int, Meta(ge=1, le=10_000), _help("Most connections to PostgreSQL at a time.")] = 10
    connect_timeout_seconds: Annotated[_Seconds, _help("Longest wait for one connection attempt.")] = 10.0
    connect_attempts_max: Annotated[_Count, _help("Connection attempts before PostgreSQL is unavailable.")] = 8
    statement_timeout_seconds: Annotated[_Seconds, _help("Longest time that a statement may run.")] = 30.0
    lock_timeout_seconds: Annotated[_Seconds, _help("Longest wait of a statement for a lock.")] = 10.0
    transaction_attempts_max: Annotated[
        _Count, _help("Attempts at a transaction that meets a deadlock or a serialization failure.")
    ] = 10

    encryption_key: Annotated[
        str | None, _help("Base64 of the 32 bytes that encrypt the payloads of queues with encryption.")
    ] = None
    encryption_allow_plain: Annotated[
        bool, _help("Without a key, store the payloads of queues with encryption plainly.")
    ] = False
    embedded_start_timeout_seconds: Annotated[_Seconds, _help("Longest wait for the embedded PostgreSQL to start.")] = (
        60.0
    )

    @property
    def encryption_key_bytes(self) -> bytes | None:
        return None if self.encryption_key is None else _decode_key(self.encryption_key)

    def __repr__(self) -> str:
        """All settings, without their secrets: this is what ends up in logs."""
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        shown["dsn"] = None if self.dsn is None else _without_password(self.dsn)
        shown["encryption_key"] = None if self.encryption_key is None else _HIDDEN
        return f"Config({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


_TYPES = get_type_hints(Config, include_extras=True)
_VARIABLES = {ENVIRONMENT_PREFIX + name.upper(): name for name in _TYPES}


def load(
    overrides: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Config:
    """The settings in force. An override of None and an empty environment variable are as if not given."""
    values: dict[str, Any] = {}
    # From the weakest source to the strongest: the last one to name a setting wins.
    for name, value, source in _given(overrides or {}, os.environ if environ is None else environ, file):
        values[name] = _convert(name, value, source)
    return Config(**values)


def _given(
    overrides: Mapping[str, object], environ: Mapping[str, str], file: Path | None
) -> Iterator[tuple[str, object, str]]:
    """Every given value: its name, itself, and what to call it in an error."""
    in_file = {} if file is None else _read(file)
    _check_known(in_file, _TYPES, f"in {file}")
    for name, value in in_file.items():
        yield name, value, f"{name} in {file}"

    ours = [variable for variable in environ if variable.startswith(ENVIRONMENT_PREFIX)]
    _check_known(ours, _VARIABLES.keys() | OTHER_VARIABLES, "in the environment")
    for variable, name in _VARIABLES.items():
        if environ.get(variable):
            yield name, environ[variable], variable

    _check_known(overrides, _TYPES, "given")
    for name, value in overrides.items():
        if value is not None:
            yield name, value, name


def _check_known(names: Iterable[str], known: Collection[str], where: str) -> None:
    unknown = sorted(set(names).difference(known))
    if unknown:
        raise InvalidOption(f"unknown settings {where}: {', '.join(unknown)}", unknown=unknown)


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption(f"the settings in {file} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidOption(f"the settings in {file} are not TOML: {error}") from error


def _convert(name: str, value: object, source: str) -> Any:
    """The value as the type of its setting. The errors say what was expected and do not repeat a secret."""
    if isinstance(value, Path):
        value = str(value)
    try:
        converted = msgspec.convert(value, _TYPES[name], strict=False)
    except msgspec.ValidationError as error:
        raise InvalidOption(f"{source} is not valid: {error}") from error
    if name == "encryption_key" and len(_decode_key(converted) or b"") != ENCRYPTION_KEY_BYTES:
        raise InvalidOption(f"{source} is not valid: it must be the base64 of {ENCRYPTION_KEY_BYTES} bytes")
    return converted


def _decode_key(text: str) -> bytes | None:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        return None


def _without_password(dsn: str) -> str:
    """The DSN for people. What cannot be taken apart is hidden whole."""
    try:
        parts = urlsplit(dsn)
    except ValueError:
        return _HIDDEN
    # An @ further on may be that of a password with a character in it that should have been escaped.
    if not parts.scheme or "@" in parts.path + parts.query + parts.fragment:
        return _HIDDEN
    credentials, at, host = parts.netloc.rpartition("@")
    user, colon, _ = credentials.partition(":")
    query = [(name, _HIDDEN if "password" in name else value) for name, value in parse_qsl(parts.query)]
    shown = f"{parts.scheme}://{user}{colon}{_HIDDEN if colon else ''}{at}{host}{parts.path}"
    return f"{shown}?{urlencode(query, safe='*/:')}" if query else shown
