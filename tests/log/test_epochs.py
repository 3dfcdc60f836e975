from __future__ import annotations

import pytest

from mqd.errors import ErrorCode, MqError
from mqd.log.epochs import LeaderEpochs


def test_end_offsets_as_a_follower_requests_them() -> None:
    epochs = LeaderEpochs([(2, 10), (3, 20), (7, 50)])
    assert not epochs.dirty
    answers = {epoch: epochs.end_offset_for(epoch, 80) for epoch in (-1, 0, 2, 3, 5, 7, 8)}
    assert answers == {
        -1: (-1, -1),
        0: (0, 10),
        2: (2, 20),
        3: (3, 50),
        5: (3, 50),
        7: (7, 80),
        8: (-1, -1),
    }
    assert LeaderEpochs().end_offset_for(0, 0) == (-1, -1)


def test_epoch_of_an_offset() -> None:
    epochs = LeaderEpochs([(2, 10), (3, 20)])
    assert [epochs.epoch_of(offset) for offset in (9, 10, 19, 20, 99)] == [-1, 2, 2, 3, 3]


def test_assign_ignores_known_epochs_and_replaces_empty_ones() -> None:
    epochs = LeaderEpochs()
    epochs.assign(1, 0)
    epochs.assign(2, 5)
    epochs.assign(3, 5)
    assert epochs.entries() == [(1, 0), (3, 5)] and epochs.dirty and epochs.latest == 3
    epochs.dirty = False
    epochs.assign(3, 9)
    assert not epochs.dirty
    with pytest.raises(AssertionError):
        epochs.assign(2, 20)


def test_truncation_at_both_ends() -> None:
    epochs = LeaderEpochs([(1, 0), (2, 10), (4, 20)])
    epochs.truncate_from_end(30)
    dirty = [epochs.dirty]
    epochs.truncate_from_end(20)
    assert epochs.entries() == [(1, 0), (2, 10)] and epochs.latest == 2
    assert [*dirty, epochs.dirty] == [False, True]
    epochs.truncate_from_start(12)
    assert epochs.entries() == [(2, 12)]
    epochs.truncate_from_end(0)
    assert epochs.entries() == [] and epochs.latest == -1


def test_the_divergence_of_a_fetched_log() -> None:
    """Epochs 1 and 4; the log ends at 5."""
    epochs = LeaderEpochs([(1, 0), (4, 3)])
    assert epochs.divergence(4, 5, 5) is None
    assert epochs.divergence(1, 3, 5) is None
    assert epochs.divergence(1, 4, 5) == (1, 3), "it has more of epoch 1"
    assert epochs.divergence(4, 6, 5) == (4, 5)
    assert epochs.divergence(2, 2, 5) == (1, 3), "this log has no epoch 2"
    with pytest.raises(MqError) as refused:
        epochs.divergence(5, 5, 5)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
