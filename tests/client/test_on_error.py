"""Functions that are told of errors."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep import connect, connect_async
from lockstep.errors import InvalidRequest


@pytest.mark.parametrize("make", [connect, connect_async])
def test_async_function_is_refused(make: Any) -> None:
    """Nobody would wait for it, and it would never run."""

    async def on_error(_: Exception, __: Any) -> None: ...

    client = make("memory://")
    for verb in (client.producer, client.worker):
        with pytest.raises(InvalidRequest, match="on_error"):
            verb("orders", on_error=on_error)
        verb("orders", on_error=lambda _, __: None)
