"""Dead letters: finding, redriving and purging them."""

from __future__ import annotations

from typing import Protocol

from lockstep.core.records import DeadLetter, DeadLetterFilter, DeadLetterPage


class DeadLetters(Protocol):
    """Lists, redrives and purges dead letters."""

    async def dead_letters(self, where: DeadLetterFilter, *, limit: int = 100, offset: int = 0) -> DeadLetterPage:
        """Matching dead letters, newest first (failed_at, then id), and the total number of matches."""

    async def dead_letter(self, dead_letter_id: int) -> DeadLetter:
        """One dead letter. Raises DeadLetterNotFound."""

    async def redrive(self, where: DeadLetterFilter, *, limit: int = 1000, done: bool | None = None) -> int:
        """Push the messages of matching dead letters, oldest first (id), to the end of their partitions again and
        remove the dead letters, in one transaction; returns how many: at most `limit`, and 0 only if no more match.

        The new message has the old payload, trace id, kind, reference, encoding, producer_sub and headers, with an
        additional header `lockstep-redriven-from` that holds the old message id. It gets no transaction id, because the
        old one is already used. Every group sees it.

        Its copy in a dead queue is removed with the dead letter, unless queue mode has completed the copy; so a message
        is sent back once, by this verb or by redrive_queue. A dead letter whose copy is under a live lease stays,
        because a consumer is working on it. A dead letter whose copy queue mode has completed stays, too, even if
        retention has removed the copy since, unless `done` is true; None means true only if the filter has ids.
        """

    async def redrive_queue(self, queue: str, *, limit: int = 1000) -> int:
        """Send messages of a dead queue back to the end of the partitions they came from, by partition id and seq, at
        most `limit`, in one transaction; returns how many. Each message goes once, however many callers do this at the
        same time.

        This includes only messages that came there as dead letters, whose queue still exists, that queue mode has not
        completed, and that are not under a live lease. They are removed from the dead queue, with their dead letters.
        Raises QueueNotFound, QueueFull.
        """

    async def purge(self, where: DeadLetterFilter) -> int:
        """Remove matching dead letters, in slices; returns how many. Their messages stay until retention removes
        them."""
