"""Offsets of consumer groups (KIP-848): the member epoch of each partition decides who may commit
and fetch.
"""

from __future__ import annotations

from typing import Any

import pytest

from mqd.errors import ErrorCode, MqError
from tests.coordinator.group import offset_support as offsets
from tests.coordinator.group.consumer_support import Group
from tests.coordinator.group.offset_support import commit, commit_in_transaction, delete, fetched

STALE = ErrorCode.STALE_MEMBER_EPOCH
DAY_SECONDS = 86_400.0


@pytest.fixture
def group() -> Group:
    """Member m has every partition of topic t, and member epoch 1 or more."""
    made = Group({"t": 3, "u": 1})
    made.join("m", ("t",))
    made.later()
    made.beat("m", made.state.members["m"].epoch, owned=everything())
    return made


def everything() -> set[tuple[str, int]]:
    return {("t", partition) for partition in range(3)}


def epoch(group: Group, member_id: str = "m") -> int:
    return group.state.members[member_id].epoch


def by_m(group: Group, *, later: int = 0) -> dict[str, Any]:
    return {"member_id": "m", "generation_id_or_member_epoch": epoch(group) + later}


def test_a_member_commits_and_fetches_offsets_in_its_epoch(group: Group) -> None:
    assert commit(group.harness, (0, 5), **by_m(group)) == {0: 0}
    for later in (-1, 0, 1):
        requested: dict[str, Any] = {"member_id": "m", "member_epoch": epoch(group) + later}
        if later:
            with pytest.raises(MqError) as caught:
                fetched(group.harness, 0, **requested)
            assert caught.value.code is STALE
        else:
            assert fetched(group.harness, 0, **requested) == {0: 5}
    with pytest.raises(MqError) as caught:
        fetched(group.harness, 0, member_id="nobody", member_epoch=1)
    assert caught.value.code is ErrorCode.UNKNOWN_MEMBER_ID
    assert fetched(group.harness, 0) == {0: 5}  # an administrator


def test_non_members_cannot_commit(group: Group) -> None:
    assert commit(group.harness, (0, 5), **by_m(group, later=1)) == {0: STALE}
    assert commit(group.harness, (0, 5), version=8, **by_m(group)) == {
        0: ErrorCode.UNSUPPORTED_VERSION
    }
    assert commit(group.harness, (0, 5), member_id="n", generation_id_or_member_epoch=1) == {
        0: ErrorCode.UNKNOWN_MEMBER_ID
    }
    assert commit(group.harness, (0, 5)) == {0: ErrorCode.UNKNOWN_MEMBER_ID}
    assert fetched(group.harness, 0) == {0: -1}


def test_an_older_epoch_may_commit_partitions_assigned_by_then(group: Group) -> None:
    """The whole commit is refused for one partition that was assigned later (KIP-1251)."""
    before = epoch(group)
    group.topics.create("v", 1)
    group.beat("m", before, subscribed_topic_names=["t", "v"])
    group.later()
    group.beat("m", epoch(group), owned=everything())
    group.beat("m", epoch(group), owned=everything() | {("v", 0)})
    assert epoch(group) > before
    old: dict[str, Any] = {"member_id": "m", "generation_id_or_member_epoch": before}
    assert commit(group.harness, (0, 5), **old) == {0: 0}
    assert commit(group.harness, (0, 5), topic="v", **old) == {0: STALE}
    rows = [
        {"name": "t", "partitions": offsets.rows((1, 6))},
        {"name": "v", "partitions": offsets.rows((0, 6))},
    ]
    answer = group.harness.call("OffsetCommit", 9, {"group_id": "g", "topics": rows, **old})
    assert [row["error_code"] for topic in answer["topics"] for row in topic["partitions"]] == [
        STALE,
        STALE,
    ]
    assert fetched(group.harness, 0, 1) == {0: 5, 1: -1}


def test_transactional_commits_check_the_generation(group: Group) -> None:
    assert commit_in_transaction(
        group.harness, (0, 5), member_id="m", generation_id=epoch(group) + 1
    ) == {0: ErrorCode.ILLEGAL_GENERATION}
    assert commit_in_transaction(
        group.harness, (0, 5), member_id="m", generation_id=epoch(group)
    ) == {0: 0}


def test_offsets_of_subscribed_topics_are_in_use(group: Group) -> None:
    assert delete(group.harness, 0) == {0: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
    assert delete(group.harness, 0, topic="u") == {0: 0}


def test_without_members_any_client_commits_until_the_offsets_are_deleted(group: Group) -> None:
    group.leave("m")
    assert commit(group.harness, (0, 5)) == {0: 0}
    group.harness.fail_over()
    assert fetched(group.harness, 0) == {0: 5}
    group.harness.advance(8 * DAY_SECONDS)
    assert fetched(group.harness, 0) == {0: -1}
    assert group.harness.shard.state.get("g") is None
    group.harness.fail_over()
    assert group.harness.shard.state.get("g") is None
