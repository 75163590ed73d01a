"""A store whose calls can be held back, so that a test decides what comes together."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from lockstep.storage.base import Store


class Gate:
    """Passes every call on to a real store; the verbs of `held` only while the gate is open."""

    def __init__(self, store: Store, *held: str) -> None:
        self._store = store
        self._held = held
        self._open = asyncio.Event()
        self.arrived = asyncio.Event()
        """Set once a held call waits at the gate."""
        self.calls: Counter[str] = Counter()

    def open(self) -> None:
        self._open.set()

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._store, name)
        if name not in self._held:
            return verb

        async def pass_on(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] += 1
            self.arrived.set()
            await self._open.wait()
            return await verb(*args, **kwargs)

        return pass_on
