"""The ISR of a partition on its leader: the committed one, and the proposed one. Pure.

The leader proposes a change, and the controller decides by compare-and-set (AlterPartition: leader
epoch, partition epoch, broker epochs). Until the leader has the response, either ISR may be the
true one. So the high watermark waits for the members of both, the *maximal* ISR (KIP-497, I22), and
at most one change is in flight. A request whose response was lost may reach the controller after
its own retry. The retry has raised the partition epoch, accepted or refused, so the late request
changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from mqd.errors import ErrorCode
from mqd.types import IsrChange, IsrOutcome, NodeId


class ProposalResult(Enum):
    """The result of one attempt to change the ISR."""

    COMMITTED = "committed"
    REFUSED = "refused"
    """The change never takes effect: the committed ISR stays."""
    RETRY = "retry"
    """The result is unknown: the leader sends the same change again."""
    WAIT = "wait"
    """The controller has newer metadata, which decides the change when it arrives here."""
    STALE = "stale"
    """The change was no longer in flight: newer metadata has decided it."""


class InSync:
    """The committed ISR, and the change in flight."""

    __slots__ = ("committed", "maximal", "partition_epoch", "proposal", "since_metadata")

    def __init__(self, isr: Iterable[NodeId], partition_epoch: int) -> None:
        self.committed = frozenset(isr)
        self.partition_epoch = partition_epoch
        self.proposal: IsrChange | None = None
        self.maximal = self.committed
        self.since_metadata = self.committed
        """All members since the newest metadata on this node. Of those that left, this node does
        not know whether they are eligible to lead.
        """

    def commit(self, isr: Iterable[NodeId], partition_epoch: int) -> None:
        """Take the ISR of newer metadata, which has decided the change in flight."""
        self._decide(isr, partition_epoch)
        self.metadata_caught_up()

    def metadata_caught_up(self) -> None:
        """The metadata on this node includes the controller's last response."""
        self.since_metadata = self.committed

    def _decide(self, isr: Iterable[NodeId], partition_epoch: int) -> None:
        self.committed = self.maximal = frozenset(isr)
        self.since_metadata |= self.committed
        self.partition_epoch = partition_epoch
        self.proposal = None

    def propose(self, change: IsrChange) -> None:
        """From now on, the high watermark also waits for the members of `change`."""
        assert self.proposal is None, "one change is in flight at most"
        assert change.partition_epoch == self.partition_epoch, (change, self.partition_epoch)
        self.proposal = change
        self.maximal = self.committed | {node_id for node_id, _ in change.isr}

    def on_outcome(self, change: IsrChange, outcome: IsrOutcome | None) -> ProposalResult:
        """Apply the controller's response to `change`. None: there was no response."""
        if self.proposal is not change:
            return ProposalResult.STALE
        if outcome is None:
            return ProposalResult.RETRY
        if outcome.error is ErrorCode.NONE:
            if (
                outcome.leader_epoch != change.leader_epoch
                or outcome.partition_epoch < self.partition_epoch
            ):
                return ProposalResult.WAIT
            self._decide(outcome.isr, outcome.partition_epoch)
            return ProposalResult.COMMITTED
        if outcome.error in _NEWER_ELSEWHERE:
            return ProposalResult.WAIT
        if outcome.error in _REFUSED:
            self._decide(self.committed, self.partition_epoch)
            return ProposalResult.REFUSED
        return ProposalResult.RETRY


_NEWER_ELSEWHERE = frozenset(
    {ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.NEW_LEADER_ELECTED}
)
_REFUSED = frozenset(
    {ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INVALID_REQUEST}
)
