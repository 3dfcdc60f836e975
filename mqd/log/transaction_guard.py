"""Kafka's VerificationGuard (KIP-890): the first append of a transaction needs the confirmation of
the transaction coordinator. A core.

A batch that was delayed beyond its transaction must not begin a new one, which no marker would end.
So anything that begins or ends a transaction of the producer removes the guard, and a confirmation
that arrives later has no effect.
"""

from __future__ import annotations


class Guard:
    """See the head of this file."""

    __slots__ = ("bumps_epochs", "confirmed", "epoch", "lowest_sequence", "since_ms")

    def __init__(self, epoch: int, sequence: int, bumps_epochs: bool, since_ms: int) -> None:
        self.epoch = epoch
        self.lowest_sequence = sequence
        """The lowest sequence of the waiting batches. No batch with a higher one may be appended
        first.
        """
        self.bumps_epochs = bumps_epochs
        """Whether each transaction of the producer has a new epoch. Its first sequence is 0 then.
        """
        self.since_ms = since_ms
        self.confirmed = False
        """The coordinator has confirmed the transaction. The sender of the request sets it, and
        clears it after the append."""
