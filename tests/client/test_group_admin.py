from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from mqd.client.admin import Admin
from mqd.client.cluster import ClusterClient, connect
from mqd.client.errors import ClientError
from mqd.client.group_consumer import open_group_consumer
from mqd.client.group_descriptions import (
    GroupDescription,
    ListedGroup,
    OpenTransaction,
    TransactionDescription,
)
from mqd.client.offsets import CommittedOffset
from mqd.client.transactional import open_transactional_producer
from mqd.errors import ErrorCode
from mqd.types import TopicPartition
from tests.client.fake import API_VERSIONS, FakeCluster, Hang, HangUp
from tests.client.test_consumer import fill

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


@asynccontextmanager
async def admin_of(cluster: FakeCluster) -> AsyncIterator[tuple[ClusterClient, Admin]]:
    async with connect([("fake", 9001)], network=cluster, request_timeout_s=5.0) as client:
        yield client, Admin(client, timeout_s=5.0)


def cluster_of(nursery: trio.Nursery, nodes: int = 2) -> FakeCluster:
    cluster = FakeCluster(nursery, nodes=nodes)
    for partition in cluster.add_topic("a", 2):
        fill(partition, 20)
    return cluster


async def test_groups_of_both_protocols_with_their_members(nursery: trio.Nursery) -> None:
    cluster = cluster_of(nursery)
    async with (
        admin_of(cluster) as (client, admin),
        open_group_consumer(client, "old", ["a"], reset="beginning") as old,
        open_group_consumer(
            client, "new", ["a"], reset="beginning", group_protocol="consumer"
        ) as new,
    ):
        await old.next()
        await new.next()
        await new.next()
        assert await admin.list_groups() == [
            ListedGroup("new", "consumer", "Stable", "consumer", 1),
            ListedGroup("old", "consumer", "Stable", "classic", 1),
        ]
        assert await admin.list_groups(states=["Empty"]) == []
        found = await admin.describe_groups(["old", "new", "none"])
        for name, kind, assignor in (("old", "classic", "range"), ("new", "consumer", "uniform")):
            described = found[name]
            assert isinstance(described, GroupDescription) and described.is_active
            assert (described.type, described.state, described.assignor, described.coordinator) == (
                kind,
                "Stable",
                assignor,
                "fake:9001",
            )
            (member,) = described.members
            assert (
                member.assignment == (A0, A1)
                and member.topics == ("a",)
                and member.host == "/127.0.0.1"
            )
        assert (
            isinstance(found["none"], ClientError)
            and found["none"].code is ErrorCode.GROUP_ID_NOT_FOUND
        )
        refused = await admin.delete_groups(["old", "none"])
        assert [each.code.name for each in refused.values() if each is not None] == [
            "NON_EMPTY_GROUP",
            "GROUP_ID_NOT_FOUND",
        ]
    async with admin_of(cluster) as (_, admin):
        assert await admin.delete_groups(["old"]) == {"old": None}


async def test_missing_groups_of_old_brokers_are_errors(nursery: trio.Nursery) -> None:
    cluster = cluster_of(nursery, 1)
    cluster.one.versions |= {15: (0, 4), 10: (0, 2), 9: (1, 5)}
    del cluster.one.versions[69]
    async with admin_of(cluster) as (_, admin):
        found = await admin.describe_groups(["none", "two"])
        assert all(
            isinstance(each, ClientError) and each.code is ErrorCode.GROUP_ID_NOT_FOUND
            for each in found.values()
        )
        assert await admin.list_group_offsets(["none"]) == {"none": {}}


async def test_offsets_are_set_read_and_deleted_and_lag_is_computed(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = cluster_of(nursery)
    cluster.coordinator = 2
    loading = [{"partition_index": index, "error_code": 14} for index in range(2)]
    cluster.brokers[2].script(8, {"topics": [{"name": "a", "partitions": loading}]})
    async with admin_of(cluster) as (client, admin):
        assert await admin.alter_group_offsets(
            "g", {A0: CommittedOffset(5, "by hand"), A1: 50}
        ) == {A0: None, A1: None}
        assert await admin.list_group_offsets(["g", "none"]) == {
            "g": {A0: CommittedOffset(5, "by hand"), A1: CommittedOffset(50)},
            "none": {},
        }
        lags = await admin.group_lag("g")
        assert [(each.tp, each.start, each.end, each.lag, each.member) for each in lags] == [
            (A0, 0, 20, 15, None),
            (A1, 0, 20, 0, None),
        ]
        assert await admin.delete_group_offsets("g", [A1]) == {A1: None}
        with pytest.raises(ClientError) as caught:
            await admin.delete_group_offsets("none", [A1])
        assert caught.value.code is ErrorCode.GROUP_ID_NOT_FOUND
        with pytest.raises(ClientError) as caught:
            await admin.group_lag("none")
        assert caught.value.code is ErrorCode.GROUP_ID_NOT_FOUND
        async with open_group_consumer(
            client, "g", ["a"], reset="beginning", auto_commit=False
        ) as consumer:
            await consumer.next()
            lags = await admin.group_lag("g")
            assert [(each.lag, each.member is not None) for each in lags] == [
                (15, True),
                (None, True),
            ]
            refused = (await admin.alter_group_offsets("g", {A0: 0}))[A0]
            assert refused is not None and refused.code is ErrorCode.UNKNOWN_MEMBER_ID
            refused = (await admin.delete_group_offsets("g", [A0]))[A0]
            assert refused is not None and refused.code is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        del cluster.topics["a"]
        assert [(each.tp, each.end, each.lag) for each in await admin.group_lag("g")] == [
            (A0, None, None)
        ]


async def test_the_lag_of_the_coordinator_is_used(nursery: trio.Nursery) -> None:
    """All groups in one request, and no request to a leader; a partition without a known log end
    has no lag.
    """
    cluster = cluster_of(nursery, 1)

    def group(name: str, *rows: tuple[int, int, int]) -> dict[str, Any]:
        partitions = [
            {
                "partition_index": index,
                "committed_offset": offset,
                "log_start_offset": 0,
                "log_end_offset": end,
            }
            for index, offset, end in rows
        ]
        return {"group_id": name, "topics": [{"name": "a", "partitions": partitions}]}

    response = {
        "groups": [group("g", (0, 5, 20), (1, 3, -1)), group("two", (0, 20, 20))],
        "has_log_ends": True,
    }
    cluster.one.script(9, response)
    async with admin_of(cluster) as (_, admin):
        lags = await admin.group_lags(["g", "two"])
        assert {
            name: [(each.tp, each.end, each.lag) for each in found]
            for name, found in lags.items()
            if isinstance(found, list)
        } == {
            "g": [(A0, 20, 15), (A1, None, None)],
            "two": [(A0, 20, 0)],
        }
    requested = [key for key, _ in cluster.one.requests]
    assert (requested.count(9), requested.count(2)) == (1, 0)


async def test_groups_with_unknown_lag_do_not_hide_others(
    nursery: trio.Nursery,
) -> None:
    cluster = cluster_of(nursery, 1)
    cluster.one.script(
        9,
        {
            "groups": [{"group_id": "g", "error_code": 30}, {"group_id": "two", "topics": []}],
            "has_log_ends": True,
        },
    )
    async with admin_of(cluster) as (_, admin):
        await admin.alter_group_offsets("g", {A0: 5})
        found = await admin.group_lags(["g", "two"])
        assert isinstance(found["g"], ClientError) and "'g'" in found["g"].message


async def test_offsets_of_many_groups_are_one_request(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    """Where a transaction may still change offsets, the request is repeated; the error of a
    partition applies only to its group.
    """
    cluster = cluster_of(nursery, 1)
    names = [f"g{number}" for number in range(40)]
    for number, name in enumerate(names):
        cluster.one._group(name).offsets[A0] = number, ""
    group = cluster.groups["g7"]
    group.pending[1] = {A0: (8, "")}

    async def commit() -> None:
        await trio.sleep(1)
        group.offsets |= group.pending.pop(1)

    async with admin_of(cluster) as (_, admin):
        found = await admin.list_group_offsets(names)
        assert found == {name: {A0: CommittedOffset(number)} for number, name in enumerate(names)}
        assert [key for key, _ in cluster.one.requests].count(9) == 1
        nursery.start_soon(commit)
        assert (await admin.list_group_offsets(names, stable=True))["g7"] == {
            A0: CommittedOffset(8)
        }
        refused = {"name": "a", "partitions": [{"partition_index": 0, "error_code": 29}]}
        cluster.one.script(
            9,
            {"groups": [{"group_id": "g0", "topics": [refused]}, {"group_id": "g1", "topics": []}]},
        )
        results = await admin.list_group_offsets(["g0", "g1"])
        assert (
            isinstance(results["g0"], ClientError)
            and "a-0" in results["g0"].message
            and results["g1"] == {}
        )


async def test_open_transactions_are_listed_described_and_fenced(nursery: trio.Nursery) -> None:
    cluster = cluster_of(nursery)
    async with (
        admin_of(cluster) as (client, admin),
        open_transactional_producer(client, "t") as producer,
    ):
        await producer.begin()
        await producer.send("a", b"x", partition=1)
        producer_id, epoch = producer.producer
        assert [tuple(each) for each in await admin.list_transactions()] == [
            ("t", producer_id, "Ongoing", 1, False)
        ]
        assert await admin.list_transactions(["Empty"]) == []
        found = await admin.describe_transactions(["t", "none"])
        assert found["t"] == TransactionDescription(
            "t", "fake:9001", "Ongoing", producer_id, epoch, 60_000, 1000, (A1,)
        )
        assert (
            isinstance(found["none"], ClientError)
            and found["none"].code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        )
        assert await admin.fence_producers(["t"]) == {"t": (producer_id, epoch + 1)}
        with pytest.raises(ClientError):
            await producer.commit()


async def test_a_transaction_unknown_to_its_coordinator_is_hanging(nursery: trio.Nursery) -> None:
    cluster = cluster_of(nursery)
    async with (
        admin_of(cluster) as (client, admin),
        open_transactional_producer(client, "t") as producer,
    ):
        await producer.begin()
        await producer.send("a", b"x", partition=1)
        assert await admin.find_hanging_transactions([A0, A1], older_than_ms=1000) == ([], {})
        cluster.transactions["t"].partitions.clear()
        ((found,), _) = await admin.find_hanging_transactions([A0, A1], older_than_ms=1000)
        assert (
            isinstance(found, OpenTransaction) and found.tp == A1 and found.transactional_id == "t"
        )
        assert found.producer.transaction_start_offset == 20
        cluster.transactions.clear()
        ((found,), _) = await admin.find_hanging_transactions([A0, A1], older_than_ms=1000)
        assert found.transactional_id is None
        assert await admin.find_hanging_transactions([A1], older_than_ms=10**15) == ([], {})
        await admin.abort_transaction(A1, *producer.producer, 0)
        assert await admin.find_hanging_transactions([A1], older_than_ms=1000) == ([], {})
        assert cluster.partition(A1).aborted == [(producer.producer[0], 20, 21)]


async def test_an_unsupported_filter_is_an_error(
    nursery: trio.Nursery,
) -> None:
    cluster = cluster_of(nursery, 1)
    cluster.one.versions[66] = (0, 0)
    async with admin_of(cluster) as (_, admin):
        with pytest.raises(ClientError, match="cannot narrow"):
            await admin.list_transactions(longer_than_ms=5)
        cluster.one.script(66, {"unknown_state_filters": ["Merry"]})
        with pytest.raises(ClientError, match="Merry"):
            await admin.list_transactions(["Merry"])


@pytest.mark.parametrize("how", ["refuses", "silent"])
async def test_a_short_timeout_returns_the_results_of_live_nodes(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock, how: str
) -> None:
    """Calls with a longer timeout wait until other nodes have taken over."""
    cluster = cluster_of(nursery, 3)
    (leaderless,) = cluster.add_topic("b")
    leaderless.leader = -1
    cluster.partition(A1).leader = 2
    cluster.one._group("g").offsets[A0] = 7, ""
    if how == "refuses":
        cluster.down.add(2)
    else:
        cluster.brokers[2].script(API_VERSIONS, *[Hang()] * 99)
    places = dict.fromkeys([A0, A1, TopicPartition("b", 0)], -1)
    async with connect([("fake", 9001)], network=cluster, connect_timeout_s=2) as client:
        began = trio.current_time()
        admin = Admin(client, timeout_s=60, patient=False)
        for results in (
            await admin.list_groups_by_node(),
            await admin.list_transactions_by_node(),
            await admin.describe_log_dirs(),
        ):
            assert [isinstance(results[node], list) for node in (1, 2, 3)] == [True, False, True]
            failed = results[2]
            assert isinstance(failed, ClientError) and "broker 2" in failed.remedy
        with pytest.raises(ClientError):
            await admin.list_groups()
        found = await admin.list_offsets(places)
        assert [isinstance(each, ClientError) for each in found.values()] == [False, True, True]
        cluster.coordinator = 2
        refused = (await admin.describe_groups(["g"]))["g"]
        assert isinstance(refused, ClientError) and "broker 2" in refused.remedy
        assert trio.current_time() - began < 13, "six requests, at most two seconds each"

        async def others_take_over() -> None:
            await trio.sleep(20)
            leaderless.leader = cluster.partition(A1).leader = cluster.coordinator = 3
            del cluster.addresses[2]

        nursery.start_soon(others_take_over)
        admin = Admin(client, timeout_s=60)
        assert isinstance((await admin.describe_groups(["g"]))["g"], GroupDescription)
        assert [each.group_id for each in await admin.list_groups()] == ["g"]
        assert not any(
            isinstance(each, ClientError) for each in (await admin.list_offsets(places)).values()
        )


async def test_a_single_name_is_not_split_into_letters(nursery: trio.Nursery) -> None:
    cluster = cluster_of(nursery, 1)
    async with admin_of(cluster) as (_, admin):
        calls = (
            admin.delete_topics,
            admin.describe_topics,
            admin.describe_groups,
            admin.delete_groups,
            admin.list_group_offsets,
        )
        for call in (*calls, admin.group_lags, admin.describe_transactions, admin.fence_producers):
            with pytest.raises(ClientError, match="is 'a': give a list"):
                await call("a")
        assert list(cluster.topics) == ["a"]


async def test_members_are_removed_by_either_id_after_loading(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = cluster_of(nursery, 1)
    async with admin_of(cluster) as (client, admin):
        group = cluster.one._group("g")
        async with open_group_consumer(
            client, "g", ["a"], reset="beginning", instance_id="static"
        ) as consumer:
            await consumer.next()
            cluster.one.script(13, {"error_code": 14}, HangUp())
            removed = await admin.remove_members(
                "g", member_ids=["none"], instance_ids=["static"], reason="why not"
            )
            assert (
                removed["static"] is None
                and isinstance(removed["none"], ClientError)
                and not group.members
            )
            assert removed["none"].code is ErrorCode.UNKNOWN_MEMBER_ID
        assert await admin.remove_members("g") == {}
        cluster.one.versions[13] = (0, 2)
    async with admin_of(cluster) as (_, admin):
        with pytest.raises(ClientError, match="cannot remove members"):
            await admin.remove_members("g", instance_ids=["static"])


async def test_a_coordinator_that_loads_is_waited_for(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = cluster_of(nursery)
    cluster.one.script(16, {"error_code": 14}, {"error_code": 15})
    cluster.one.script(69, {"groups": [{"group_id": "g", "error_code": 14}]})
    cluster.groups["g"] = cluster.one._group("g")
    async with admin_of(cluster) as (_, admin):
        assert len(await admin.list_groups()) == 1
        assert isinstance((await admin.describe_groups(["g"]))["g"], GroupDescription)
