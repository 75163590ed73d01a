"""How messages of encrypted queues are stored, and what is accepted when they are read."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.config import Config
from lockstep.core.codec import NO_KEYS, Codec, decrypted, unseal
from lockstep.core.sealing import Keyring
from lockstep.errors import EncryptionUnavailable, SealBroken


@dataclass(frozen=True, slots=True)
class Encryption:
    """How messages of encrypted queues are stored."""

    keys: Keyring = NO_KEYS
    plain_allowed: bool = False
    """Without a key they are stored unencrypted, instead of being refused."""

    @classmethod
    def of(cls, config: Config) -> Encryption:
        return cls(Keyring(config.encryption_keys), config.encryption_allow_plain)

    def keys_for(self, queue: str) -> Keyring | None:
        """The keys to encrypt messages of an encrypted queue with; None if they are to be stored unencrypted."""
        if not self.keys and not self.plain_allowed:
            raise EncryptionUnavailable(
                f"queue {queue!r} is encrypted, but no encryption_key is configured", queue=queue
            )
        return self.keys or None

    def require_sealed(self, codec: int, what: str) -> None:
        """Raise SealBroken for a body that is not bound to its place, if every stored body must be."""
        if not codec & Codec.BOUND and not self.plain_allowed:
            raise SealBroken(f"{what} is of an encrypted queue, but it is not encrypted as everything there is")

    def decrypted(self, codec: int, body: bytes, binding: bytes) -> bytes:
        """A packed body as it was before it was encrypted. Raises SealBroken, EncryptionUnavailable."""
        return decrypted(codec, body, keys=self.keys, binding=binding)

    def open(self, codec: int, body: bytes, binding: bytes) -> bytes:
        """The layout in a packed body. Raises CorruptSegment, EncryptionUnavailable."""
        return unseal(codec, body, keys=self.keys, binding=binding)
