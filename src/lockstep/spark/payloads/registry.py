"""A client for a schema registry with Confluent's API: read-only; requests each schema once per process."""

from __future__ import annotations

import os
from base64 import b64encode
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import quote

import msgspec
import urllib3

from lockstep.errors import InvalidOption, Unavailable

_ACCEPT = "application/vnd.schemaregistry.v1+json"
_TIMEOUT = urllib3.Timeout(connect=5, read=10)
_RETRIES = urllib3.Retry(3, backoff_factor=0.2, status_forcelist=(429, 502, 503, 504), raise_on_status=False)
_ANSWER_BYTES_MAX = 8 * 1024 * 1024
_REFERENCES_MAX = 500


@dataclass(frozen=True, slots=True)
class RegistryAddress:
    """The address of a registry. Travels to the executors; its credentials are looked up where they are used."""

    url: str
    auth_env: str | None = None
    """The environment variable with `user:password`, or with a token."""

    def check(self) -> None:
        parsed = urllib3.util.parse_url(self.url)
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise InvalidOption(f"the option schemaRegistry is not an address such as http://host:8081: {self.url!r}")
        if parsed.auth is not None:
            raise InvalidOption("the option schemaRegistry has a password: name a variable with schemaRegistryAuthEnv")


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema from a registry: JSON for Avro, a descriptor set in base64 for Protobuf."""

    id: int
    kind: str
    text: str


class _Reference(msgspec.Struct, frozen=True):
    name: str
    subject: str
    version: int


class _Answer(msgspec.Struct, rename={"kind": "schemaType"}):
    schema: str
    id: int = 0
    kind: str = "AVRO"
    references: list[_Reference] = []


class Registry:
    """A registry over HTTP. Raises Unavailable if it does not answer, and InvalidOption if it lacks something."""

    def __init__(self, address: RegistryAddress) -> None:
        self._address = address

    def schema(self, schema_id: int) -> Schema:
        return _schema(self._address, schema_id)

    def latest(self, subject: str) -> Schema:
        """The newest schema of a subject, and its id."""
        found = _ask(self._address, f"/subjects/{quote(subject, safe='')}/versions/latest")
        return self.schema(found.id)


@cache
def _schema(address: RegistryAddress, schema_id: int) -> Schema:
    """Schemas never change, so answers are cached for the lifetime of the process."""
    found = _ask(address, f"/schemas/ids/{schema_id}")
    if found.kind == "PROTOBUF":
        return Schema(schema_id, found.kind, _descriptors(address, schema_id, found.references))
    return Schema(schema_id, found.kind, _with_references(address, found))


def _with_references(address: RegistryAddress, answer: _Answer) -> str:
    """An Avro schema after those that it refers to, as a list of named types."""
    if not answer.references:
        return answer.schema
    parts: dict[str, Any] = {}
    _collect_avro(address, answer.references, parts)
    return msgspec.json.encode([*parts.values(), msgspec.json.decode(answer.schema)]).decode()


def _collect_avro(address: RegistryAddress, references: list[_Reference], parts: dict[str, Any]) -> None:
    for reference in references:
        if reference.name not in parts:
            found = _version(address, reference)
            _collect_avro(address, found.references, parts)
            _bounded(parts)
            parts[reference.name] = msgspec.json.decode(found.schema)


def _descriptors(address: RegistryAddress, schema_id: int, references: list[_Reference]) -> str:
    """A Protobuf schema as a set of descriptors, after those that it imports."""
    from lockstep.spark.payloads.protobuf import descriptor_set

    files: dict[str, str] = {}
    _collect_protobuf(address, references, files)
    last = _ask(address, f"/schemas/ids/{schema_id}", "serialized").schema
    return descriptor_set([*files.items(), ("", last)])


def _collect_protobuf(address: RegistryAddress, references: list[_Reference], files: dict[str, str]) -> None:
    for reference in references:
        # Files that come with protobuf are not requested.
        if reference.name in files or reference.name.startswith("google/protobuf/"):
            continue
        found = _version(address, reference, "serialized")
        _collect_protobuf(address, found.references, files)
        _bounded(files)
        files[reference.name] = found.schema


def _bounded(found: dict[str, Any]) -> None:
    if len(found) >= _REFERENCES_MAX:
        raise InvalidOption(f"the schema refers to more than {_REFERENCES_MAX} others")


def _version(address: RegistryAddress, reference: _Reference, form: str | None = None) -> _Answer:
    return _ask(address, f"/subjects/{quote(reference.subject, safe='')}/versions/{reference.version}", form)


def _ask(address: RegistryAddress, path: str, form: str | None = None) -> _Answer:
    url = f"{address.url.rstrip('/')}{path}{'' if form is None else f'?format={form}'}"
    headers = {"Accept": _ACCEPT, **_authorization(address)}
    try:
        with urllib3.PoolManager() as pool:
            response = pool.request(
                "GET", url, headers=headers, timeout=_TIMEOUT, retries=_RETRIES, preload_content=False
            )
            body = response.read(_ANSWER_BYTES_MAX)
            response.release_conn()
    except urllib3.exceptions.HTTPError as error:
        raise Unavailable(f"the schema registry does not answer: {error}") from None
    if response.status == 404:
        raise InvalidOption(f"the schema registry does not know {path}")
    if response.status in (401, 403):
        raise InvalidOption(f"the schema registry refuses {path}: give user:password in schemaRegistryAuthEnv")
    if response.status != 200:
        raise Unavailable(f"the schema registry answers {path} with status {response.status}")
    try:
        return msgspec.json.decode(body, type=_Answer)
    except msgspec.DecodeError as error:
        raise Unavailable(f"the schema registry does not answer {path} with a schema: {error}") from error


def _authorization(address: RegistryAddress) -> dict[str, str]:
    if address.auth_env is None:
        return {}
    secret = os.environ.get(address.auth_env)
    if not secret:
        raise InvalidOption(
            f"the option schemaRegistryAuthEnv names the environment variable {address.auth_env}, which is not set here"
        )
    if ":" in secret:
        return {"Authorization": f"Basic {b64encode(secret.encode()).decode()}"}
    return {"Authorization": f"Bearer {secret}"}
