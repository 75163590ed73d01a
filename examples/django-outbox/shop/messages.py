"""Messages that are part of Django's transaction."""

import json
from typing import Any

from django.db import connection, transaction

import lockstep
from lockstep import NewMessage


def push(queue: str, payload: Any, *, partition: str) -> None:
    """Push in the transaction in which the caller is. Nothing is sent if it rolls back."""
    if not connection.in_atomic_block:
        raise transaction.TransactionManagementError("push belongs into transaction.atomic()")
    connection.ensure_connection()
    message = NewMessage(queue=queue, partition=partition, payload=json.dumps(payload).encode())
    lockstep.push_within(connection.connection, [message])
