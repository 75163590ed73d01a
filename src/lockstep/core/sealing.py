"""Sealing: AES-256-GCM with a binding that the reader must know, and several keys of which one is active.

    version 1 | key id, 8 bytes | salt, 12 bytes | nonce, 12 bytes | ciphertext and tag

Each body has a key of its own, the HMAC-SHA256 of the salt under the configured key. Random nonces therefore suffice
for 2^80 bodies per key instead of 2^32. A sealed body is bound to its purpose, its place (for a segment: its id, its
queue, its partitions and their message counts), the codec and the key. These are associated data: authenticated but not
stored in the seal, so a body that was moved, copied or exchanged does not open. An older form has no version, key id or
binding (`Codec.ENCRYPTED` without `Codec.BOUND`); decision 0045 says how long it can still be read.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING
from uuid import UUID

from lockstep.errors import EncryptionUnavailable, SealBroken

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
VERSION = 1
KEY_ID_BYTES = 8
SALT_BYTES = 12
NONCE_BYTES = 12
TAG_BYTES = 16
HEADER_BYTES = 1 + KEY_ID_BYTES
_NONCE_AT = HEADER_BYTES + SALT_BYTES
_SEALED_AT = _NONCE_AT + NONCE_BYTES

_SEGMENT = b"segment"
_WAITING = b"waiting"
_CRON = b"cron"
_OPERATION = b"operation"
SPOOL = b"spool"
"""The binding of a spool record. The assignment of messages to queues is part of the sealed content."""


@lru_cache(maxsize=64)
def key_id(key: bytes) -> str:
    """The name of a key: it identifies the key and reveals nothing about it."""
    return hashlib.sha256(b"lockstep encryption key\0" + key).digest()[:KEY_ID_BYTES].hex()


def key_id_of(body: bytes) -> str:
    """The id of the key that a bound body was sealed with."""
    return body[1:HEADER_BYTES].hex()


@dataclass(frozen=True, slots=True, repr=False)
class Keyring:
    """The keys of a process. The first is the active key, which seals; all of them open."""

    keys: tuple[bytes, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.keys)

    @property
    def active_id(self) -> str | None:
        return key_id(self.keys[0]) if self.keys else None

    @property
    def active_header(self) -> bytes | None:
        """The start of a body that is sealed with the active key."""
        return _header(self.keys[0]) if self.keys else None

    def seal(self, plain: bytes, binding: bytes, *, codec: int) -> bytes:
        """Seal with the active key, which must exist."""
        key = self.keys[0]
        header, salt, nonce = _header(key), os.urandom(SALT_BYTES), os.urandom(NONCE_BYTES)
        sealed = _cipher(_derived(key, salt)).encrypt(nonce, plain, _associated(codec, header, binding))
        return b"".join([header, salt, nonce, sealed])

    def open(self, body: bytes, binding: bytes, *, codec: int) -> bytes:
        """Open a sealed body. Raises EncryptionUnavailable if its key is missing, and SealBroken if the body was
        changed or is not in the place that it was sealed for."""
        if len(body) < _SEALED_AT + TAG_BYTES or body[0] != VERSION:
            raise SealBroken("an encrypted body is cut short, or of an unknown version")
        header = body[:HEADER_BYTES]
        key = next((key for key in self.keys if _header(key) == header), None)
        if key is None:
            raise EncryptionUnavailable(self._missing(key_id_of(body)), key_id=key_id_of(body))
        from cryptography.exceptions import InvalidTag

        salt, nonce = body[HEADER_BYTES:_NONCE_AT], body[_NONCE_AT:_SEALED_AT]
        try:
            return _cipher(_derived(key, salt)).decrypt(nonce, body[_SEALED_AT:], _associated(codec, header, binding))
        except InvalidTag as error:
            raise SealBroken() from error

    def open_unbound(self, body: bytes) -> bytes:
        """Open a body in the older form, which does not name its key. Raises EncryptionUnavailable, SealBroken."""
        if not self.keys:
            raise EncryptionUnavailable("the message is encrypted, but no encryption key is configured")
        if len(body) < NONCE_BYTES + TAG_BYTES:
            raise SealBroken("an encrypted body is cut short")
        from cryptography.exceptions import InvalidTag

        for key in self.keys:
            try:
                return _cipher(key).decrypt(body[:NONCE_BYTES], body[NONCE_BYTES:], None)
            except InvalidTag:
                continue
        raise EncryptionUnavailable("the message was encrypted with another key, or was changed")

    def _missing(self, wanted: str) -> str:
        if not self.keys:
            return f"the message is encrypted with the key {wanted}, but no encryption key is configured"
        known = ", ".join(map(key_id, self.keys))
        return f"the message is encrypted with the key {wanted}, which is not among those configured: {known}"


def segment_binding(uuid: UUID, queue_id: int, partition_ids: Sequence[int], counts: Sequence[int]) -> bytes:
    """The segment, its queue, and the number of messages of each partition, in order."""
    runs = len(partition_ids)
    return _SEGMENT + uuid.bytes + struct.pack(f"<ii{runs}q{runs}i", queue_id, runs, *partition_ids, *counts)


def waiting_binding(queue_id: int, partition: str, key: str | None) -> bytes:
    """The queue and partition of a scheduled message, and its key."""
    return b"".join([_WAITING, struct.pack("<i", queue_id), _text(partition), _text(key)])


def cron_binding(name: str, queue: str, partition: str) -> bytes:
    """The recurring message and its partition."""
    return b"".join([_CRON, _text(name), _text(queue), _text(partition)])


def operation_binding(kind: str, requests: int) -> bytes:
    """The number and kind of requests in a bundle. Their queues are part of the sealed content."""
    return b"".join([_OPERATION, _text(kind), struct.pack("<i", requests)])


def _text(value: str | None) -> bytes:
    if value is None:
        return struct.pack("<i", -1)
    encoded = value.encode()
    return struct.pack("<i", len(encoded)) + encoded


def _associated(codec: int, header: bytes, binding: bytes) -> bytes:
    return bytes([codec]) + header + binding


@lru_cache(maxsize=64)
def _header(key: bytes) -> bytes:
    return bytes([VERSION]) + bytes.fromhex(key_id(key))


def _derived(key: bytes, salt: bytes) -> bytes:
    return hmac.digest(key, b"lockstep seal\0" + salt, "sha256")


def _cipher(key: bytes) -> AESGCM:
    # Imported on first use: the import is slow, and most processes have nothing encrypted.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)
