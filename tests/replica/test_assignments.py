"""How the metadata changes the partitions of a node."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from trio.testing import MockClock

from mqd.errors import MqError
from mqd.protocol.files import HIGH_WATERMARK_CHECKPOINT, decode_offset_checkpoint
from mqd.replica.assignment import Assignment
from mqd.replica.settings import TopicSettings
from mqd.types import NO_NODE, TopicPartition
from tests.replica.replicas import ME, OTHER_ID, PLAIN, TOPIC_ID, TWO, Replicas
from tests.replica.roles import THREE, TP, Fetchers, assign


async def test_a_partition_is_found_by_name_and_by_id(replicas: Replicas) -> None:
    partition = replicas.held()
    assert partition.is_leader
    assert (
        replicas.replica.by_name[b"t"][0] is replicas.replica.by_id[TOPIC_ID.bytes][0] is partition
    )
    assert replicas.replica.get(TopicPartition("t", 0)) is partition


async def test_only_assigned_partitions_are_open(
    replicas: Replicas,
) -> None:
    assert replicas.assign(replicas=(TWO,), leader=TWO) is None
    assert not replicas.service.logs
    replicas.held(replicas=(ME, TWO), epoch=1)
    assert replicas.assign(replicas=(TWO,), leader=TWO, epoch=2) is None
    assert not replicas.service.logs
    assert not replicas.replica.by_name
    assert not replicas.replica.by_id


async def test_delete_removes_every_partition_of_only_that_topic(
    replicas: Replicas,
) -> None:
    for index in range(3):
        replicas.held("t", index)
    kept = replicas.held("t2", topic_id=OTHER_ID)
    replicas.replica.assignments.delete("t")
    replicas.replica.assignments.delete("t")
    assert replicas.replica.partitions() == [kept]
    assert list(replicas.service.logs) == [TopicPartition("t2", 0)]
    assert replicas.replica.get(TopicPartition("t", 0)) is None


async def test_strays_are_removed_and_logs_with_a_known_topic_id_stay(replicas: Replicas) -> None:
    for name, topic_id in (("known", TOPIC_ID), ("another", TOPIC_ID), ("gone", TOPIC_ID)):
        replicas.service.open(TopicPartition(name, 0), topic_id, PLAIN)
    removed = replicas.replica.assignments.remove_strays(
        {TopicPartition("known", 0): TOPIC_ID, TopicPartition("another", 0): OTHER_ID}
    )
    assert sorted(one.topic for one in removed) == ["another", "gone"]
    assert list(replicas.service.logs) == [TopicPartition("known", 0)]


async def test_a_recreated_topic_is_not_blocked_by_its_predecessor_s_damaged_log(
    replicas: Replicas,
) -> None:
    replicas.service.offline[TopicPartition("t", 0)] = "damaged"
    replicas.assign()
    replicas.replica.assignments.delete("t")
    assert replicas.assign(topic_id=OTHER_ID) is not None


async def test_the_high_watermark_comes_from_the_checkpoint(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    first = Replicas(tmp_path)
    await first.service.start()
    partition = first.held(replicas=(ME, TWO), isr=(ME,))
    first.produce(partition)
    first.replica.end_of_turn()
    first.replica.checkpoint_high_watermarks()
    first.produce(partition)
    first.replica.end_of_turn()
    await first.service.close()
    assert decode_offset_checkpoint((tmp_path / HIGH_WATERMARK_CHECKPOINT).read_bytes()) == {
        TopicPartition("t", 0): 1
    }
    second = Replicas(tmp_path)
    await second.service.start()
    follower = second.held(replicas=(ME, TWO), leader=TWO, epoch=1)
    assert (follower.high_watermark, follower.log.log_end_offset) == (1, 2)
    assert second.held(replicas=(ME, TWO), isr=(ME,), leader=ME, epoch=2).high_watermark == 2
    second.kill()


async def test_a_lost_log_is_offline_and_not_empty(tmp_path: Path) -> None:
    first = Replicas(tmp_path)
    await first.service.start()
    partition = first.held()
    first.produce(partition)
    first.replica.end_of_turn()
    first.replica.checkpoint_high_watermarks()
    await first.service.close()
    shutil.rmtree(partition.log.path)
    second = Replicas(tmp_path)
    await second.service.start()
    second.replica.assignments.remove_strays(
        {TopicPartition("t", 0): TOPIC_ID, TopicPartition("fresh", 0): OTHER_ID}
    )
    for epoch in (1, 2):
        assert second.assign(epoch=epoch) is None
    assert (
        "is missing" in second.replica.offline[TopicPartition("t", 0)]
        and not partition.log.path.exists()
    )
    assert second.held("fresh", topic_id=OTHER_ID).is_leader
    second.replica.assignments.delete("t")
    assert second.held(topic_id=OTHER_ID).log.log_end_offset == 0
    await second.service.close()


async def test_followers_follow_the_leader_of_each_epoch(replicas: Replicas) -> None:
    fetchers = Fetchers(replicas)
    assign(replicas, TWO, 0, 0, (TWO, ME))
    assign(replicas, TWO, 0, 1, (TWO,))  # nothing that changes the fetches
    assign(replicas, THREE, 1, 2, (THREE,))
    assert fetchers.taken() == [("follow", TWO, 0), ("follow", THREE, 1)]
    assign(replicas, NO_NODE, 2, 3, (THREE,))
    assign(replicas, ME, 3, 4, (ME,))
    assert fetchers.taken() == [("unfollow", NO_NODE, 2), ("unfollow", ME, 3)]
    replicas.replica.assignments.delete("t")
    assert [call for call, _, _ in fetchers.taken()] == ["unfollow"]


async def test_a_follower_that_the_controller_removes_reports_its_end_again(
    replicas: Replicas,
) -> None:
    sessions = replicas.replica.follower_sessions
    assign(replicas, ME, 0, 0, (ME, TWO, THREE))
    two, three = sessions.resolve(TWO, 7, 0, 0, 1.0), sessions.resolve(THREE, 8, 0, 0, 1.0)
    assign(replicas, ME, 0, 1, (ME, THREE))
    assert sessions.resolve(THREE, 8, three.id, 1, 2.0) is three
    with pytest.raises(MqError, match="no fetch session"):
        sessions.resolve(TWO, 7, two.id, 1, 2.0)


async def test_written_records_are_synced_when_durability_is_required_later(
    replicas: Replicas,
) -> None:
    """No later append may come: the high watermark would wait for a sync that nothing requests."""
    assign(replicas, ME, 0, 0, (ME, TWO))
    partition = replicas.replica.get(TP)
    assert partition is not None
    replicas.produce(partition, acks=1)
    replicas.replica.end_of_turn()
    assert (partition.high_watermark, partition.log.durability.end_offset) == (0, 0)
    replicas.replica.assignments.configure(
        "t", TopicSettings(replace(PLAIN, flush_before_ack=True), 1)
    )
    assert partition.log in replicas.service.directories[partition.log.directory].to_sync


async def test_a_reassigned_replica_deletes_its_log(replicas: Replicas) -> None:
    assign(replicas, ME, 0, 0, (ME,))
    partition = replicas.replica.get(TP)
    assert partition is not None
    ticket = replicas.produce(partition, acks=1)
    replicas.replica.end_of_turn()
    assert ticket.releases == 1
    given = Assignment(TP, TOPIC_ID, TWO, 1, (TWO, THREE), (TWO,), 1)
    replicas.replica.assignments.apply([given], {"t": TopicSettings(PLAIN, 1)})
    assert replicas.replica.get(TP) is None
    assert TP not in replicas.service.logs


async def test_an_invalid_list_of_throttled_replicas_throttles_nothing(
    replicas: Replicas,
) -> None:
    for entries, expected in (
        (("0:1",), True),
        (("nonsense",), False),
        (("*",), True),
        ((), False),
    ):
        settings = TopicSettings(PLAIN, 1, leader_throttled=entries, follower_throttled=entries)
        replicas.replica.assignments.configure("t", settings)
        for throttle in (replicas.replica.leader_throttle, replicas.replica.follower_throttle):
            assert throttle.is_throttled(TP) is expected
