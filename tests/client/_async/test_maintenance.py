"""Maintenance mode through the client."""

from __future__ import annotations

import pytest

from lockstep import AsyncClient
from lockstep.errors import InvalidRequest


async def test_modes_are_set_one_by_one(client: AsyncClient) -> None:
    mode = await client.maintenance_mode()
    assert (mode.push, mode.pop, mode.breaker) == (False, False, "closed")
    assert await client.set_maintenance_mode(push=True) == await client.maintenance_mode()
    mode = await client.set_maintenance_mode(pop=True)
    assert (mode.push, mode.pop) == (True, True)
    mode = await client.set_maintenance_mode(push=False, pop=False)
    assert (mode.push, mode.pop) == (False, False)
    assert await client.retry_rejected() == 0
    assert await client.accept_buffer_loss() == 0


async def test_anything_but_a_boolean_is_refused(client: AsyncClient) -> None:
    with pytest.raises(InvalidRequest):
        await client.set_maintenance_mode(push="yes")  # type: ignore[arg-type]
