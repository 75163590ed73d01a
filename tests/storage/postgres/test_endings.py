"""What the statuses of an ack do is the same in SQL as in core/endings.py."""

from __future__ import annotations

import asyncpg
import pytest

from lockstep.core.endings import ACK_STATUSES, ENDINGS, AckStatus
from lockstep.storage.postgres.migrate import migrate


def test_every_status_has_an_ending() -> None:
    assert tuple(ENDINGS) == ACK_STATUSES


@pytest.mark.parametrize("status", ACK_STATUSES)
async def test_sql_ends_a_delivery_as_the_table_says(database_dsn: str, status: AckStatus) -> None:
    connection = await asyncpg.connect(database_dsn)
    try:
        await migrate(connection)
        row = await connection.fetchrow(
            "select lockstep.redelivers(s), lockstep.charges(s, false), lockstep.charges(s, true), lockstep.delays(s), "
            "not (s = 'completed' or lockstep.redelivers(s)) from (select $1::text as s) t",
            status,
        )
    finally:
        await connection.close()
    ending = ENDINGS[status]
    assert row is not None
    assert tuple(row) == (
        ending.redelivers,
        ending.charges_ordered,
        ending.charges_shared,
        ending.delays,
        ending.gives_up,
    )
