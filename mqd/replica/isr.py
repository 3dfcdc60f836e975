"""The in-sync replicas of a partition on its leader: what is committed, what is proposed, and what
the controller said. Pure.

The leader proposes, the controller decides by compare-and-set (AlterPartition: leader epoch,
partition epoch, broker epochs). Until the answer is known either ISR may be the true one. So the
high watermark waits for the members of both, the *maximal* ISR (KIP-497), and no second change is
proposed: one is in flight at most. An attempt whose answer was lost may come to the controller
late: it finds another partition epoch there, whether a repetition was taken before it or refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from mqd.errors import ErrorCode
from mqd.types import IsrChange, IsrOutcome, NodeId


class Verdict(Enum):
    """What became of a proposal."""

    COMMITTED = "committed"
    DROPPED = "dropped"
    """It did not take effect and will not: the committed ISR stands."""
    RETRY = "retry"
    """Nobody knows: the same change must be sent again."""
    WAIT = "wait"
    """The controller knows more than this node: newer metadata is on its way, and settles it."""
    STALE = "stale"
    """The answer to a change that is no longer in flight: newer metadata was here first."""


class InSync:
    """The committed ISR, and the change in flight."""

    __slots__ = ("committed", "maximal", "partition_epoch", "proposal", "recent")

    def __init__(self, isr: Iterable[NodeId], partition_epoch: int) -> None:
        self.committed = frozenset(isr)
        self.partition_epoch = partition_epoch
        self.proposal: IsrChange | None = None
        self.maximal = self.committed
        self.recent = self.committed
        """All who were members since the metadata told the ISR: whether those that left
        since are eligible to lead is not known.
        """

    def commit(self, isr: Iterable[NodeId], partition_epoch: int) -> None:
        """Newer metadata: what was in flight has been decided by it, one way or the other."""
        self._decide(isr, partition_epoch)
        self.told()

    def told(self) -> None:
        """The metadata has come as far as the controller's last answer."""
        self.recent = self.committed

    def _decide(self, isr: Iterable[NodeId], partition_epoch: int) -> None:
        self.committed = self.maximal = frozenset(isr)
        self.recent |= self.committed
        self.partition_epoch = partition_epoch
        self.proposal = None

    def propose(self, change: IsrChange) -> None:
        """From now on the high watermark waits for the members of `change`, too."""
        assert self.proposal is None, "one change is in flight at most"
        assert change.partition_epoch == self.partition_epoch, (change, self.partition_epoch)
        self.proposal = change
        self.maximal = self.committed | {node_id for node_id, _ in change.isr}

    def settle(self, change: IsrChange, outcome: IsrOutcome | None) -> Verdict:
        """Fold in what the controller said of `change`; None where it is not known whether
        it heard of it.
        """
        if self.proposal is not change:
            return Verdict.STALE
        if outcome is None:
            return Verdict.RETRY
        if outcome.error is ErrorCode.NONE:
            if (
                outcome.leader_epoch != change.leader_epoch
                or outcome.partition_epoch < self.partition_epoch
            ):
                return Verdict.WAIT
            self._decide(outcome.isr, outcome.partition_epoch)
            return Verdict.COMMITTED
        if outcome.error in _NEWER_ELSEWHERE:
            return Verdict.WAIT
        if outcome.error in _REFUSED:
            self._decide(self.committed, self.partition_epoch)
            return Verdict.DROPPED
        return Verdict.RETRY


_NEWER_ELSEWHERE = frozenset(
    {ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.NEW_LEADER_ELECTED}
)
_REFUSED = frozenset(
    {ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INVALID_REQUEST}
)
