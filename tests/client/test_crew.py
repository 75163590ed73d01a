"""Workers in threads, where things happen in any order."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import lockstep
from lockstep.client._sync import crew
from lockstep.client._sync.concurrency import Task

PATIENCE_SECONDS = 30


def test_handler_may_close_its_client_before_its_crew_knows_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = threading.Event()
    closed_in_time: list[bool] = []

    class LateTask(Task):
        """Its thread is at work before whoever made it goes on."""

        def __init__(self, *arguments: Any, **names: Any) -> None:
            super().__init__(*arguments, **names)
            closed_in_time.append(closed.wait(PATIENCE_SECONDS))

    monkeypatch.setattr(crew, "Task", LateTask)
    client = lockstep.connect("memory://")
    client.push("orders", 1)

    @client.worker("orders")
    def handle(_: Any) -> None:
        client.close()
        closed.set()

    client.run(stop_on_signals=False)
    assert closed_in_time == [True]
