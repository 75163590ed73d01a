"""The store over plain dicts: the executable specification of every other store, and a store for tests.

`state` holds the data and keeps its indexes right, `log` one partition's messages. Each noun of the contract is a
room: a class in a module of its own, with the names of the rooms of the PostgreSQL store. `push`, `pop` and `ack`
are the rules of delivery as functions of (state, now).
"""

from lockstep.storage.memory.store import MemoryStore

__all__ = ["MemoryStore"]
