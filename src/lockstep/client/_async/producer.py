"""Pushes in the background: messages gather in a bounded buffer while the previous push is in progress."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Unpack

from lockstep.client._async.concurrency import Condition, Event, Task
from lockstep.client._async.transport import AsyncTransport
from lockstep.client._failures import FORKED, OnError, tell
from lockstep.client._payloads import MessageOptions, new_message
from lockstep.core.messages import NewMessage
from lockstep.core.names import DEFAULT_PARTITION, check_name
from lockstep.errors import InvalidRequest, LockstepError, TooLarge

logger = logging.getLogger("lockstep.client")


class AsyncProducer:
    """Pushes to one queue, in order, one push at a time. Failures are passed to `on_error` and raised by `flush`."""

    def __init__(
        self,
        transport: AsyncTransport,
        queue: str,
        *,
        buffer_messages_max: int,
        buffer_bytes_max: int,
        batch_messages_max: int,
        batch_bytes_max: int,
        linger_seconds: float,
        on_error: OnError | None,
        on_close: Callable[[AsyncProducer], object],
    ) -> None:
        self._transport = transport
        self._queue = check_name(queue, what="queue")
        self._buffer_messages_max = buffer_messages_max
        self._buffer_bytes_max = buffer_bytes_max
        self._batch_messages_max = batch_messages_max
        self._batch_bytes_max = batch_bytes_max
        self._linger_seconds = linger_seconds
        self._on_error = on_error
        self._on_close = on_close
        self._changed = Condition()
        self._hurry = Event()
        """Set when a batch is full, or a caller waits for an empty buffer."""
        self._buffer: deque[NewMessage] = deque()
        self._held_messages = 0
        self._held_bytes = 0
        """Messages in the buffer and messages being pushed; both count towards a full buffer."""
        self._accepted = 0
        self._settled = 0
        self._failure: Exception | None = None
        self._failed = 0
        self._closed = False
        self._process = os.getpid()
        self._task: Task | None = None

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except Exception:
            # The error that left the block says more.
            if error is None:
                raise

    async def push(
        self,
        payload: Any,
        **options: Unpack[MessageOptions],
    ) -> None:
        """Add a message to the buffer; waits while it is full. Raises InvalidPayload and InvalidName at once."""
        check_name(options.get("partition", DEFAULT_PARTITION), what="partition")
        message = new_message(self._queue, payload, **options)
        self._check_process()
        async with self._changed:
            while self._full(len(message.payload)) and not self._closed:
                await self._changed.wait()
            self._accept(message)

    async def flush(self) -> None:
        """Wait until all earlier messages are stored. Raises the first failure since the last call, with the number of
        failed messages in its details."""
        self._check_process()
        async with self._changed:
            target = self._accepted
            while self._settled < target:
                self._hurry.set()
                await self._changed.wait()
            failure, failed, self._failure, self._failed = self._failure, self._failed, None, 0
        if isinstance(failure, LockstepError):
            failure.details["failed"] = failed
        if failure is not None:
            raise failure

    async def close(self) -> None:
        """Flush, and stop. Safe to call twice."""
        if os.getpid() != self._process:
            return  # the parent process of this fork pushes the buffered messages
        async with self._changed:
            self._closed = True
            self._hurry.set()
            self._changed.notify_all()
        if self._task is not None:
            await self._task.join()
        self._on_close(self)
        await self.flush()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise InvalidRequest(FORKED)

    def _full(self, size: int) -> bool:
        """A message larger than the whole buffer gets it alone."""
        return self._held_messages >= self._buffer_messages_max or (
            self._held_messages > 0 and self._held_bytes + size > self._buffer_bytes_max
        )

    def _accept(self, message: NewMessage) -> None:
        if self._closed:
            raise InvalidRequest("the producer is closed")
        self._buffer.append(message)
        self._accepted += 1
        self._held_messages += 1
        self._held_bytes += len(message.payload)
        if len(self._buffer) >= self._batch_messages_max or self._full(0):
            self._hurry.set()
        if self._task is None:
            self._task = Task(self._run, name="lockstep-producer")
        self._changed.notify_all()

    async def _run(self) -> None:
        while batch := await self._take():
            await self._send(batch)
            async with self._changed:
                self._settled += len(batch)
                self._held_messages -= len(batch)
                self._held_bytes -= sum(len(message.payload) for message in batch)
                self._changed.notify_all()

    async def _take(self) -> list[NewMessage]:
        """The next batch; empty when closed and everything is sent."""
        async with self._changed:
            while not self._buffer and not self._closed:
                await self._changed.wait()
        if self._linger_seconds and not self._closed:
            await self._hurry.wait(self._linger_seconds)
        async with self._changed:
            self._hurry.clear()
            return self._fill()

    def _fill(self) -> list[NewMessage]:
        batch: list[NewMessage] = []
        size = 0
        while self._buffer and len(batch) < self._batch_messages_max:
            size += len(self._buffer[0].payload)
            if batch and size > self._batch_bytes_max:
                break
            batch.append(self._buffer.popleft())
        return batch

    async def _send(self, batch: list[NewMessage]) -> None:
        try:
            await self._transport.push(batch)
        except (InvalidRequest, TooLarge) as error:
            if len(batch) == 1:
                self._fail(error, batch)
                return
            # A message that is refused must not fail its neighbours.
            middle = len(batch) // 2
            await self._send(batch[:middle])
            await self._send(batch[middle:])
        except Exception as error:
            self._fail(error, batch)

    def _fail(self, error: Exception, messages: list[NewMessage]) -> None:
        self._failure = self._failure or error
        self._failed += len(messages)
        extra = {"action": "push_failed", "queue": self._queue, "messages": len(messages), "error": str(error)}
        logger.warning("push_failed", extra=extra)
        tell(self._on_error, error, messages)
