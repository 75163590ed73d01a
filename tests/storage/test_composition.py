"""A store made of rooms has every verb of the contract, with the signature that the contract gives it."""

from __future__ import annotations

import inspect

from lockstep.storage.base import Store
from lockstep.storage.base.lifecycle import Lifecycle
from lockstep.storage.memory import MemoryStore

VERBS = {
    name: verb
    for name, verb in inspect.getmembers(Store, inspect.isfunction)
    if not name.startswith("_") and name not in vars(Lifecycle)
}


def test_every_verb_of_the_contract_goes_to_a_room() -> None:
    assert set(vars(MemoryStore().verbs)) == set(VERBS)


def test_verb_of_the_store_is_the_method_of_its_room() -> None:
    store = MemoryStore()
    assert all(getattr(store, name) == method for name, method in vars(store.verbs).items())


def test_signature_of_each_room_is_that_of_the_contract() -> None:
    for name, method in vars(MemoryStore().verbs).items():
        declared = list(inspect.signature(VERBS[name]).parameters.values())[1:]
        assert list(inspect.signature(method).parameters.values()) == declared, name
