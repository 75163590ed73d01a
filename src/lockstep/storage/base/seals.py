"""What is stored encrypted."""

from __future__ import annotations

from typing import Protocol

from lockstep.core.records import EncryptionSlice


class Seals(Protocol):
    """Re-encrypts what is stored under other keys, or in another form."""

    async def rotate_encryption(
        self, *, cursor: str | None = None, limit: int = 100, count_only: bool = False
    ) -> EncryptionSlice:
        """Read the next stored segments, waiting messages and recurring messages, at most `limit`, and encrypt those of
        encrypted queues that are not yet encrypted with the active key; with `count_only` only count them.

        A slice is complete when the call returns, and another walk at the same time does no harm. Anything that cannot
        be read is counted, and stays as it is. After a complete walk without failures, the store no longer accepts
        unencrypted bodies in encrypted queues. Raises EncryptionUnavailable without a key.
        """
