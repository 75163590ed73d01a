"""Every option in the table can be set, and is read back as it was set."""

from __future__ import annotations

from msgspec.structs import replace

from lockstep.core.policy import DEFAULTS, OPTION_NAMES, queue_options
from lockstep.storage.base import Store
from support.options import all_others


async def test_every_option_is_stored(store: Store) -> None:
    await store.configure("dead", DEFAULTS)
    others = all_others(dead_queue="dead")
    assert [name for name in OPTION_NAMES if others[name] == getattr(DEFAULTS, name)] == []
    assert (await store.configure("q", queue_options(**others))).options == queue_options(**others)
    assert (await store.queue("q")).options == queue_options(**others)
    assert {queue.name: queue.options for queue in await store.queues()} == {
        "dead": DEFAULTS,
        "q": queue_options(**others),
    }


async def test_every_option_is_changed_by_itself(store: Store) -> None:
    await store.configure("dead", DEFAULTS)
    await store.configure("q", DEFAULTS)
    so_far = {}
    for name, value in sorted(all_others(dead_queue="dead").items()):
        so_far[name] = value
        assert (await store.update_queue("q", {name: value})).options == queue_options(**so_far)


async def test_configuring_anew_resets_every_option_but_encryption(store: Store) -> None:
    await store.configure("dead", DEFAULTS)
    await store.configure("q", queue_options(**all_others(dead_queue="dead")))
    configured = (await store.configure("q", DEFAULTS)).options
    assert configured == replace(DEFAULTS, encryption=True)
