"""API keys and the audit log through the client."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from lockstep import AsyncClient
from lockstep.errors import InvalidRequest


async def test_keys_are_made_listed_and_revoked(client: AsyncClient) -> None:
    expires_at = datetime(2099, 1, 1, tzinfo=UTC)
    made = await client.create_key("billing", role="read-only", rules=["push billing.*"], expires_at=expires_at)
    assert made.token.startswith(f"lsk_{made.key.id}_")
    assert (made.key.name, made.key.role, made.key.rules) == ("billing", "read-only", ("push billing.*",))
    assert made.key.expires_at == expires_at
    assert await client.keys() == [made.key]
    assert await client.keys(after=made.key.id) == []
    assert await client.revoke_key(made.key.id)
    assert not await client.revoke_key(made.key.id)
    assert (await client.keys())[0].revoked_at is not None


@pytest.mark.parametrize(
    "given", [{}, {"role": "king"}, {"rules": ["eat *"]}, {"rules": ["push"] * 2}, {"role": "admin", "name": "x" * 101}]
)
async def test_key_that_is_not_valid_is_refused(client: AsyncClient, given: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        await client.create_key(**{"name": "x", **given})  # type: ignore[arg-type]
    assert await client.keys() == []


async def test_audit_log_is_read(client: AsyncClient) -> None:
    assert await client.audit(who="ann", queue="q", act="clear", limit=5) == []
    with pytest.raises(InvalidRequest):
        await client.audit(before="no id")
