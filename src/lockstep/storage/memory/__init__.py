"""The store over plain dicts: the executable specification of every other store, and a store for tests.

`state` holds the data and keeps its indexes right, `log` one partition's messages. The verbs are functions of
(state, now) in a module per kind; `store` is the class that gives them a clock and the names of the contract.
"""

from lockstep.storage.memory.store import MemoryStore

__all__ = ["MemoryStore"]
