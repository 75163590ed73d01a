"""Nothing is encrypted in memory."""

from __future__ import annotations

from lockstep.core.records import EncryptionSlice


class MemorySeals:
    """There is nothing to re-encrypt."""

    async def rotate_encryption(
        self, *, cursor: str | None = None, limit: int = 100, count_only: bool = False
    ) -> EncryptionSlice:
        del cursor, limit, count_only
        return EncryptionSlice()
