"""The comparison of a replica with what is committed."""

from __future__ import annotations

import pytest

from mqd.testing.probes.comparison import compare
from mqd.testing.probes.shadows import Batch, Committed, Shadow
from mqd.testing.violation import Violation


def batch(offset: int, epoch: int) -> Batch:
    return Batch(offset, offset + 1, epoch, 7, 100)


def committed() -> Committed:
    return Committed(batches=[batch(0, 0), batch(1, 1), batch(2, 1)], leader_epochs=[0, 1, 1])


def test_a_batch_of_another_epoch_below_the_log_start_offset_is_no_violation() -> None:
    shadow = Shadow(batches=[batch(0, 0), batch(1, 0), batch(2, 1)], log_start_offset=2)
    compare(shadow, committed(), 3, "a replica")
    shadow.log_start_offset = 1
    with pytest.raises(Violation, match="was committed"):
        compare(shadow, committed(), 3, "a replica")


def test_a_replica_without_a_committed_batch_is_a_violation() -> None:
    with pytest.raises(Violation, match="ends at 2, and 3 and more was committed"):
        compare(Shadow(batches=[batch(0, 0), batch(1, 1)], end=2), committed(), 3, "it")
