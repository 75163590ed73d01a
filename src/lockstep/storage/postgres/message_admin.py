"""Single messages in an operator's hands: remove, retry, bury."""

from __future__ import annotations

from typing import Any, NoReturn

import asyncpg

from lockstep.core import refusals
from lockstep.core.messages import Receipt, redriven
from lockstep.core.names import QUEUE_MODE
from lockstep.storage.postgres import pushing
from lockstep.storage.postgres.dead_letters import DeadLetters
from lockstep.storage.postgres.failures import Dying

_REMOVE = "select lockstep.remove_message($1, $2, $3::timestamptz)"
_RETRY = "select * from lockstep.retry_message($1, $2)"
_BURY = "select * from lockstep.bury_message($1, $2, $3, $4::text, $5::timestamptz)"


class MessageAdmin(DeadLetters):
    async def remove_message(self, partition_id: int, transaction_id: str) -> None:
        rows = await self.database.fetch("remove_message", _REMOVE, partition_id, transaction_id, self.now())
        if rows[0][0] != "removed":
            _refuse(rows[0][0], partition_id, transaction_id)

    async def retry_message(self, partition_id: int, transaction_id: str) -> Receipt:
        queues: set[str] = set()

        async def work(connection: asyncpg.Connection[Any]) -> pushing.Pushed:
            row = (await self.database.on(connection, "retry_message", _RETRY, partition_id, transaction_id))[0]
            if row[0] != "retried":
                _refuse(row[0], partition_id, transaction_id)
            _, queue, partition, seq, segment_id, ordinal, ids, copy_partitions, copy_seqs = row
            queues.add(queue)
            place = (queue, partition, partition_id, seq, segment_id, ordinal)
            [run] = await self._load_single([place], connection)
            if ids is not None:
                origins = [run.message(0)] * len(ids)
                if not all(await self._take_copies(connection, copy_partitions, copy_seqs, origins, with_done=True)):
                    _refuse("copy_leased", partition_id, transaction_id)
                await self._delete_dead_letters(connection, ids)
            return await self._converse(self._push_conversation([redriven(run.message(0))], overtake=True), connection)

        pushed = await self._create_names(queues, work)
        self._remember(pushed)
        return pushed.result[0]

    async def bury_message(
        self, partition_id: int, transaction_id: str, *, group: str = QUEUE_MODE, error: str | None = None
    ) -> int:
        named = (_BURY, partition_id, transaction_id, group, error, self.now())
        try:
            rows = await self.database.fetch("bury_message", *named)
        except Dying:
            rows = await self._forwarding(
                lambda connection: self.database.on(connection, "bury_message", *named), partition_ids=[partition_id]
            )
        status, dead_letter_id = rows[0]
        if status == "no_group":
            raise refusals.no_group_on(partition_id, group)
        if status != "buried":
            _refuse(status, partition_id, transaction_id)
        found: int = dead_letter_id
        return found


def _refuse(status: Any, partition_id: int, transaction_id: str) -> NoReturn:
    if status == "not_found":
        raise refusals.no_message(transaction_id, partition_id)
    raise refusals.message_conflict(status, transaction_id, partition_id)
