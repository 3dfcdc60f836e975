from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from mqd.client.cluster import ClusterClient, connect
from mqd.client.errors import ClientError, CommitFailed, ConsumerClosed
from mqd.client.fetched_batches import FetchedBatch
from mqd.client.group_consumer import GroupConsumer, open_group_consumer
from mqd.client.offsets import CommittedOffset
from mqd.errors import ErrorCode
from mqd.types import TopicPartition
from tests.client.fake import FakeCluster, HangUp
from tests.client.fake_coordinator import (
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    OFFSET_COMMIT,
    OFFSET_FETCH,
)
from tests.client.test_consumer import fill

A = [TopicPartition("a", index) for index in range(4)]
PROTOCOLS: list[dict[str, Any]] = [
    {},
    {"assignors": ["cooperative-sticky"]},
    {"group_protocol": "consumer"},
]
each_protocol = pytest.mark.parametrize(
    "protocol", PROTOCOLS, ids=["eager", "cooperative", "consumer"]
)


@asynccontextmanager
async def client_of(cluster: FakeCluster) -> AsyncIterator[ClusterClient]:
    async with connect([("fake", 9001)], network=cluster, request_timeout_s=5.0) as client:
        yield client


def cluster_of(
    nursery: trio.Nursery, *, partitions: int = 4, records: int = 20, nodes: int = 1
) -> FakeCluster:
    cluster = FakeCluster(nursery, nodes=nodes)
    for partition in cluster.add_topic("a", partitions):
        fill(partition, records)
    return cluster


class Reader:
    """A member that commits what it reads, and its assignments."""

    def __init__(
        self, cluster: FakeCluster, name: str, seen: list[tuple[str, int, int]], **options: Any
    ) -> None:
        self.cluster, self.name, self.seen, self.options = cluster, name, seen, options
        self.events: list[str] = []
        self.scope = trio.CancelScope()
        self.consumer: GroupConsumer | None = None

    async def assigned(self, partitions: list[TopicPartition]) -> None:
        self.events.append("+" + "".join(str(tp.partition) for tp in partitions))

    async def revoked(self, partitions: list[TopicPartition]) -> None:
        self.events.append("-" + "".join(str(tp.partition) for tp in partitions))

    async def lost(self, partitions: list[TopicPartition]) -> None:
        self.events.append("!" + "".join(str(tp.partition) for tp in partitions))

    async def run(self) -> None:
        with self.scope:
            options: dict[str, Any] = {
                "reset": "beginning",
                "auto_commit": False,
                "on_assigned": self.assigned,
                "on_revoked": self.revoked,
                "on_lost": self.lost,
            }
            async with (
                client_of(self.cluster) as client,
                open_group_consumer(client, "g", ["a"], **(options | self.options)) as consumer,
            ):
                self.consumer = consumer
                async for batch in consumer:
                    self.seen += [
                        (self.name, batch.partition, record.offset) for record in batch.records
                    ]
                    await consumer.commit()

    @property
    def owned(self) -> list[int]:
        return [] if self.consumer is None else [tp.partition for tp in self.consumer.assignment()]


async def until(condition: Any) -> None:
    with trio.fail_after(60):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.1)


@each_protocol
async def test_members_join_and_leave_and_each_record_is_read_once(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock, protocol: dict[str, Any]
) -> None:
    cluster = cluster_of(nursery)
    seen: list[tuple[str, int, int]] = []
    first, second = Reader(cluster, "1", seen, **protocol), Reader(cluster, "2", seen, **protocol)
    async with trio.open_nursery() as readers:
        readers.start_soon(first.run)
        await until(lambda: len(seen) == 80)
        assert first.owned == [0, 1, 2, 3]
        readers.start_soon(second.run)
        await until(lambda: len(first.owned) == 2 and len(second.owned) == 2)
        for partition in cluster.topics["a"]:
            fill(partition, 10)
        cluster.one._notify()
        await until(lambda: len(seen) == 120)
        first.scope.cancel()
        await until(lambda: len(second.owned) == 4)
        for partition in cluster.topics["a"]:
            fill(partition, 10)
        cluster.one._notify()
        await until(lambda: len(seen) == 160)
        second.scope.cancel()
    assert len({(partition, offset) for _, partition, offset in seen}) == 160
    assert not cluster.groups["g"].members
    assert first.events[0] == "+0123" and first.events[1][0] == "-"
    if protocol:
        assert len(first.events[1]) == 3, "a cooperative member revokes only what moves"
    assert all(stream.other.closed for stream in cluster.one.streams)


@each_protocol
async def test_returned_records_are_committed_before_the_revocation(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock, protocol: dict[str, Any]
) -> None:
    """With auto_commit, even though its interval never ends."""
    cluster = cluster_of(nursery, partitions=2, records=10)
    async with client_of(cluster) as client:
        options: dict[str, Any] = {
            "reset": "beginning",
            "auto_commit_interval_ms": 3_600_000,
            **protocol,
        }
        async with open_group_consumer(client, "g", ["a"], **options) as consumer:
            await consumer.next()
            await consumer.next()
            assert cluster.groups["g"].offsets == {}
            second = Reader(cluster, "2", [], **(options | {"auto_commit": True}))
            nursery.start_soon(second.run)
            with trio.move_on_after(20):
                await consumer.next()
            assert set(cluster.groups["g"].offsets.values()) == {(10, "")}
            assert second.seen == []
            second.scope.cancel()


async def test_the_current_batch_is_committed_only_if_the_block_succeeds(
    nursery: trio.Nursery,
) -> None:
    cluster = cluster_of(nursery, partitions=1)
    async with client_of(cluster) as client:
        with pytest.raises(KeyError):
            async with open_group_consumer(client, "g", ["a"], reset="beginning") as consumer:
                await consumer.next()
                await consumer.next()
                raise KeyError
        assert cluster.groups["g"].offsets == {A[0]: (10, "")}
        async with open_group_consumer(client, "g", ["a"], reset="beginning") as consumer:
            batch = await consumer.next()
            assert batch.records[0].offset == 10
        assert cluster.groups["g"].offsets == {A[0]: (20, "")}


async def test_auto_commit_periodically_commits_processed_records(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = cluster_of(nursery, partitions=1, records=40)
    async with (
        client_of(cluster) as client,
        open_group_consumer(client, "g", ["a"], reset="beginning") as consumer,
    ):
        for _ in range(3):
            await consumer.next()
        assert cluster.groups["g"].offsets == {}
        await trio.sleep(6)
        await consumer.next()
        await trio.sleep(0.1)
        assert cluster.groups["g"].offsets == {A[0]: (30, "")}


async def test_a_retried_auto_commit_does_not_undo_a_later_commit(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = cluster_of(nursery, partitions=1, records=40)
    async with (
        client_of(cluster) as client,
        open_group_consumer(client, "g", ["a"], reset="beginning") as consumer,
    ):
        for _ in range(3):
            await consumer.next()
        await trio.sleep(6)
        requested = trio.Event()

        def refused(broker: Any, request: Any) -> Any:
            requested.set()
            return {
                "topics": [{"name": "a", "partitions": [{"partition_index": 0, "error_code": 15}]}]
            }

        cluster.one.script(OFFSET_COMMIT, refused)
        await consumer.next()
        await requested.wait()
        await consumer.commit()
        await trio.sleep(4)
        assert cluster.groups["g"].offsets == {A[0]: (40, "")}


async def test_a_commit_may_have_metadata_and_is_read_back(nursery: trio.Nursery) -> None:
    cluster = cluster_of(nursery, partitions=2)
    async with (
        client_of(cluster) as client,
        open_group_consumer(client, "g", ["a"], reset="beginning", auto_commit=False) as consumer,
    ):
        await consumer.next()
        await consumer.commit({A[0]: CommittedOffset(3, "half way")})
        assert await consumer.committed(A[:2]) == {A[0]: CommittedOffset(3, "half way"), A[1]: None}
        with pytest.raises(CommitFailed, match="b-0 is not assigned to this member"):
            await consumer.commit({TopicPartition("b", 0): 3})
        assert consumer.group_metadata().generation == 1


async def test_an_expired_member_cannot_commit_and_loses_its_partitions(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = cluster_of(nursery)
    reader = Reader(cluster, "1", [])
    async with client_of(cluster) as client:
        options: dict[str, Any] = {
            "reset": "beginning",
            "auto_commit": False,
            "on_lost": reader.lost,
            "on_assigned": reader.assigned,
        }
        async with open_group_consumer(client, "g", ["a"], **options) as consumer:
            await consumer.next()
            (member_id,) = cluster.groups["g"].members
            cluster.groups["g"].expire(member_id)
            with pytest.raises(CommitFailed) as caught:
                await consumer.commit()
            assert caught.value.code is ErrorCode.UNKNOWN_MEMBER_ID
            await trio.sleep(4)
            await consumer.next()
            assert reader.events == ["+0123", "!0123", "+0123"]
            await consumer.commit()


@each_protocol
async def test_a_coordinator_that_moves_is_found_again(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock, protocol: dict[str, Any]
) -> None:
    cluster = cluster_of(nursery, nodes=2)
    cluster.one.script(
        FIND_COORDINATOR,
        {"error_code": 15, "coordinators": [{"key": "g", "error_code": 15}]},
        HangUp(),
    )
    cluster.one.script(JOIN_GROUP, {"error_code": 14, "protocol_name": ""}, HangUp())
    seen: list[tuple[str, int, int]] = []
    reader = Reader(cluster, "1", seen, **protocol)
    nursery.start_soon(reader.run)
    await until(lambda: len(seen) == 80)
    cluster.coordinator = 2
    fill(cluster.topics["a"][0], 10)
    cluster.brokers[1]._notify()
    await until(lambda: len(seen) == 90)
    assert cluster.groups["g"].offsets[A[0]] == (30, "")
    await trio.sleep(10)
    assert reader.owned == [0, 1, 2, 3] and reader.events == ["+0123"]
    reader.scope.cancel()


async def test_a_commit_during_a_rebalance_waits_for_the_next_generation(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = cluster_of(nursery)
    cluster.one.script(
        OFFSET_COMMIT,
        {"topics": [{"name": "a", "partitions": [{"partition_index": 0, "error_code": 27}]}]},
    )
    async with client_of(cluster) as client:
        options: dict[str, Any] = {
            "reset": "beginning",
            "auto_commit": False,
            "assignors": ["cooperative-sticky"],
        }
        async with open_group_consumer(client, "g", ["a"], **options) as consumer:
            batch = await consumer.next()
            # the member has not been notified yet
            with pytest.raises(ClientError, match="rebalance") as caught:
                await consumer.commit()
            assert caught.value.code is ErrorCode.REBALANCE_IN_PROGRESS
            group = cluster.groups["g"]
            group.members["late"] = next(iter(group.members.values()))
            group.rebalance()
            await trio.sleep(5.0)  # a heartbeat notifies it; it joins, and waits for the other one
            assert group.generation == 1 and group.joined
            await consumer.commit()
            assert cluster.groups["g"].generation == 2
            assert cluster.groups["g"].offsets == {TopicPartition("a", batch.partition): (10, "")}


async def test_partitions_may_be_paused_as_soon_as_they_are_assigned(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    """The start position is not known yet; a rewind keeps paused partitions paused, and newly
    assigned ones are not paused.
    """
    cluster = cluster_of(nursery)
    async with client_of(cluster) as client:

        async def pause(partitions: list[TopicPartition]) -> None:
            consumer.pause(*partitions)

        async with open_group_consumer(
            client, "g", ["a"], reset="beginning", on_assigned=pause
        ) as consumer:
            with trio.move_on_after(3):
                raise AssertionError(await consumer.next())
            assert consumer.paused() == consumer.assignment() != []
            await consumer.rewind()
            with trio.move_on_after(3):
                raise AssertionError(await consumer.next())
            with pytest.raises(ClientError, match="b-0 is not read by this consumer"):
                consumer.pause(TopicPartition("b", 0))
            consumer.resume(*consumer.assignment())
            assert (await consumer.next()).records


async def test_using_a_closed_consumer_is_an_error(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    """Also a call that waits in another task when the block ends."""
    cluster = cluster_of(nursery)
    events: list[str] = []

    async def drain(consumer: GroupConsumer) -> None:
        with pytest.raises(ConsumerClosed) as caught:
            while True:
                await consumer.next()
        events.append(caught.value.remedy)

    async with client_of(cluster) as client, trio.open_nursery() as readers:
        async with open_group_consumer(client, "g", ["a"], reset="beginning") as consumer:
            readers.start_soon(drain, consumer)
            await trio.sleep(5)
        owned = A[0]
        for use in (
            consumer.next,
            consumer.commit,
            lambda: consumer.seek(owned, 0),
            consumer.rewind,
            lambda: consumer.committed([owned]),
        ):
            with pytest.raises(ConsumerClosed, match="the consumer is closed"):
                await use()
    assert len(events) == 1 and "open another" in events[0]


async def test_invalid_arguments_are_refused_with_an_explanation(nursery: trio.Nursery) -> None:
    cluster = cluster_of(nursery)
    async with client_of(cluster) as client:
        wrong: dict[str, Any] = {
            "give a list": {"topics": "abc"},
            "reset is 'earliest'": {"reset": "earliest"},
        }
        for words, options in wrong.items():
            with pytest.raises(ClientError, match=words) as caught:
                async with open_group_consumer(client, "g", **{"topics": ["a"], **options}):
                    raise AssertionError
            assert caught.value.remedy
        async with open_group_consumer(
            client, "g", ["a"], auto_commit=False, reset="beginning"
        ) as consumer:
            await consumer.next()
            for offset in (-1, "5"):
                with pytest.raises(ClientError, match="is no offset of a-0 to commit"):
                    await consumer.commit({A[0]: offset})  # type: ignore[dict-item]  # the wrong type is the test
            with pytest.raises(ClientError, match="'sideways' is no offset of a-0"):
                await consumer.seek(A[0], "sideways")  # type: ignore[arg-type]  # the wrong type is the test


async def test_a_paused_partition_keeps_its_fetched_records(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = cluster_of(nursery, partitions=2, records=30)
    async with (
        client_of(cluster) as client,
        open_group_consumer(client, "g", ["a"], reset="beginning") as consumer,
    ):
        first = await consumer.next()
        paused = TopicPartition("a", first.partition)
        consumer.pause(paused)
        assert consumer.paused() == [paused]
        others: list[FetchedBatch] = []
        with trio.move_on_after(5):
            while True:
                others.append(await consumer.next())
        assert {each.partition for each in others} == {1 - first.partition} and len(others) == 3
        consumer.resume(paused)
        again = await consumer.next()
        assert again.partition == first.partition and again.records[0].offset == 10


async def test_seek_changes_the_position_and_rewind_returns_to_the_commit(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = cluster_of(nursery, partitions=1, records=30)
    async with (
        client_of(cluster) as client,
        open_group_consumer(client, "g", ["a"], reset="beginning", auto_commit=False) as consumer,
    ):
        await consumer.next()
        await consumer.commit()
        await consumer.next()
        await consumer.seek(A[0], 25)
        assert consumer.positions() == {A[0]: 25}
        assert (await consumer.next()).records[0].offset == 25
        await consumer.rewind()
        assert (await consumer.next()).records[0].offset == 10
        with pytest.raises(ClientError, match="a-1 is not read by this consumer"):
            await consumer.seek(A[1], 0)


async def test_a_seek_in_the_callback_sets_the_start(nursery: trio.Nursery) -> None:
    cluster = cluster_of(nursery, partitions=1, records=30)

    async def to_the_middle(partitions: list[TopicPartition]) -> None:
        await consumer.seek(partitions[0], 15)

    async with (
        client_of(cluster) as client,
        open_group_consumer(client, "g", ["a"], on_assigned=to_the_middle) as consumer,
    ):
        assert (await consumer.next()).records[0].offset == 15


@pytest.mark.parametrize(("reset", "first"), [("beginning", 0), ("end", 20)])
async def test_a_new_group_starts_at_the_configured_position(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock, reset: Any, first: int
) -> None:
    cluster = cluster_of(nursery, partitions=1)
    async with (
        client_of(cluster) as client,
        open_group_consumer(client, "g", ["a"], reset=reset) as consumer,
    ):
        with trio.move_on_after(2):
            assert (await consumer.next()).records[0].offset == first
            return
        fill(cluster.topics["a"][0], 10)
        cluster.one._notify()
        assert (await consumer.next()).records[0].offset == first


async def test_a_group_without_a_required_offset_is_an_error(nursery: trio.Nursery) -> None:
    cluster = cluster_of(nursery, partitions=1)
    async with (
        client_of(cluster) as client,
        open_group_consumer(client, "g", ["a"], reset="error") as consumer,
    ):
        for _ in range(2):
            with pytest.raises(ClientError, match="has no committed offset for a-0"):
                await consumer.next()
        await consumer.seek(A[0], 5)
        assert (await consumer.next()).records[0].offset == 5


async def test_offsets_of_an_open_transaction_are_waited_for(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = cluster_of(nursery, partitions=1)
    group = cluster.one._group("g")
    group.offsets[A[0]] = (5, "")
    group.pending[77] = {A[0]: (10, "")}
    async with (
        client_of(cluster) as client,
        open_group_consumer(client, "g", ["a"], read_committed=True) as consumer,
    ):
        with trio.move_on_after(2) as scope:
            await consumer.next()
        assert scope.cancelled_caught
        group.offsets[A[0]] = group.pending.pop(77)[A[0]]
        assert (await consumer.next()).records[0].offset == 10
    assert cluster.one.requests.count((OFFSET_FETCH, 9)) > 2


async def test_a_user_that_exceeds_max_poll_interval_leaves_and_rejoins(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = cluster_of(nursery)
    reader = Reader(cluster, "1", [])
    async with client_of(cluster) as client:
        options: dict[str, Any] = {
            "reset": "beginning",
            "max_poll_interval_ms": 10_000,
            "auto_commit": False,
            "on_lost": reader.lost,
        }
        async with open_group_consumer(client, "g", ["a"], **options) as consumer:
            await consumer.next()
            await trio.sleep(11)
            assert not cluster.groups["g"].members
            await consumer.next()
            assert reader.events == ["!0123"] and len(cluster.groups["g"].members) == 1


async def test_static_and_silently_closed_members_stay_in_the_group(
    nursery: trio.Nursery,
) -> None:
    for options in ({"instance_id": "s"}, {"leave": False}):
        cluster = cluster_of(nursery)
        async with (
            client_of(cluster) as client,
            open_group_consumer(client, "g", ["a"], reset="beginning", **options) as consumer,
        ):
            await consumer.next()
        assert len(cluster.groups["g"].members) == 1


@each_protocol
@pytest.mark.parametrize("steps", range(0, 60, 3))
async def test_a_member_that_closes_during_its_join_leaves_the_group(
    nursery: trio.Nursery, protocol: dict[str, Any], steps: int
) -> None:
    """Whatever request it was about to send, and whichever connection is faster."""
    cluster = cluster_of(nursery)
    async with client_of(cluster) as client, open_group_consumer(client, "g", ["a"], **protocol):
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
    for _ in range(50):
        await trio.lowlevel.checkpoint()
    assert "g" not in cluster.groups or not cluster.groups["g"].members


async def test_an_error_of_the_group_reaches_the_user(nursery: trio.Nursery) -> None:
    cluster = cluster_of(nursery)
    cluster.one.script(
        JOIN_GROUP, {"error_code": int(ErrorCode.GROUP_AUTHORIZATION_FAILED), "protocol_name": ""}
    )
    async with client_of(cluster) as client, open_group_consumer(client, "g", ["a"]) as consumer:
        for _ in range(2):
            with pytest.raises(ClientError, match="group 'g'") as caught:
                await consumer.next()
            assert caught.value.code is ErrorCode.GROUP_AUTHORIZATION_FAILED


async def test_a_broker_that_is_too_old_for_the_protocol_is_reported(nursery: trio.Nursery) -> None:
    cluster = cluster_of(nursery)
    del cluster.one.versions[68]
    async with (
        client_of(cluster) as client,
        open_group_consumer(client, "g", ["a"], group_protocol="consumer") as consumer,
    ):
        with pytest.raises(ClientError, match="does not serve ConsumerGroupHeartbeat"):
            await consumer.next()


@each_protocol
async def test_a_failing_callback_at_the_end_still_leaves_the_group(
    nursery: trio.Nursery, protocol: dict[str, Any]
) -> None:
    cluster = cluster_of(nursery)

    async def revoked(_: list[TopicPartition]) -> None:
        raise KeyError

    async with client_of(cluster) as client:
        with pytest.raises(KeyError):
            async with open_group_consumer(
                client, "g", ["a"], reset="beginning", on_revoked=revoked, **protocol
            ) as consumer:
                await consumer.next()
    assert not cluster.groups["g"].members


async def test_a_callback_that_was_cancelled_is_called_again(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = cluster_of(nursery)
    called = 0

    async def slow(partitions: list[TopicPartition]) -> None:
        nonlocal called
        called += 1
        await trio.sleep(1.0)

    async with (
        client_of(cluster) as client,
        open_group_consumer(client, "g", ["a"], reset="beginning", on_assigned=slow) as consumer,
    ):
        with trio.move_on_after(0.5) as scope:
            await consumer.next()
        assert scope.cancelled_caught
        await consumer.next()
        assert called == 2


async def test_requests_to_an_old_broker_use_its_versions(nursery: trio.Nursery) -> None:
    cluster = cluster_of(nursery)
    cluster.one.versions |= {
        JOIN_GROUP: (0, 2),
        HEARTBEAT: (0, 1),
        13: (0, 1),
        14: (0, 1),
        OFFSET_COMMIT: (2, 3),
        OFFSET_FETCH: (1, 3),
        10: (0, 1),
    }
    async with (
        client_of(cluster) as client,
        open_group_consumer(client, "g", ["a"], reset="beginning") as consumer,
    ):
        await consumer.next()
    assert not cluster.groups["g"].members and list(cluster.groups["g"].offsets.values()) == [
        (10, "")
    ]


async def test_same_seed_same_requests(autojump_clock: trio.abc.Clock) -> None:
    """The client depends only on its seams: two runs send the same requests in the same order."""
    import random

    from mqd.io.entropy import RandomEntropy

    async def once() -> list[tuple[int, int]]:
        async with trio.open_nursery() as inner:
            cluster = cluster_of(inner)
            async with (
                connect(
                    [("fake", 9001)], network=cluster, entropy=RandomEntropy(random.Random(5))
                ) as client,
                open_group_consumer(
                    client, "g", ["a"], reset="beginning", group_protocol="consumer"
                ) as consumer,
            ):
                with trio.move_on_after(7):
                    while True:
                        await consumer.next()
            inner.cancel_scope.cancel()
        return cluster.one.requests

    one, other = Counter(await once()), Counter(await once())
    # fetches and heartbeats are cancelled at the end: each may have sent one more request
    differ = (one - other) + (other - one)
    assert {key for key, _ in differ} <= {1, 68} and max(differ.values(), default=0) <= 1, differ
