from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from mqd.client.admin import DELETE_RECORDS, INCREMENTAL_ALTER_CONFIGS, Admin
from mqd.client.cluster import connect
from mqd.client.descriptions import (
    EARLIEST,
    END_OF_LOG,
    LATEST,
    ConfigChange,
    ConfigOperation,
    ConfigSource,
    NewTopic,
    Resource,
    ResourceType,
)
from mqd.client.errors import ClientError, DeadlineExceeded
from mqd.client.metadata import BrokerInfo
from mqd.client.producer import open_producer
from mqd.errors import ErrorCode
from mqd.types import TopicPartition
from tests.client.fake import CREATE_TOPICS, DELETE_TOPICS, LIST_OFFSETS, FakeCluster, HangUp

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
TOPIC_A = Resource(ResourceType.TOPIC, "a")


@asynccontextmanager
async def administering(cluster: FakeCluster, *, timeout_s: float = 30.0) -> AsyncIterator[Admin]:
    async with connect([("fake", 9001)], network=cluster, request_timeout_s=5.0) as client:
        yield Admin(client, timeout_s=timeout_s)


async def test_create_list_describe_delete(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("old")
    async with administering(cluster) as admin:
        made = await admin.create_topics([NewTopic("a", 3), NewTopic("old")])
        assert (await admin.create_topic("b", 3)).name == "b"
        assert not isinstance(made["a"], ClientError) and made["a"].partitions == 3
        assert (
            isinstance(made["old"], ClientError)
            and made["old"].code is ErrorCode.TOPIC_ALREADY_EXISTS
        )
        assert [(topic.name, len(topic.partitions)) for topic in await admin.list_topics()] == [
            ("a", 3),
            ("b", 3),
            ("old", 1),
        ]
        described = await admin.describe_topics(["a", "nope"])
        assert (
            not isinstance(described["a"], ClientError) and described["a"].replication_factor == 1
        )
        assert (
            isinstance(described["nope"], ClientError) and "topic list" in described["nope"].remedy
        )
        gone = await admin.delete_topics(["a", "nope"])
        assert (
            gone["a"] is None
            and gone["nope"] is not None
            and gone["nope"].code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
        with pytest.raises(ClientError, match="does not exist"):
            await admin.delete_topic("a")
        with pytest.raises(ClientError):
            await admin.create_topic("old")


async def test_validate_only_changes_nothing(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("b")
    async with administering(cluster) as admin:
        await admin.create_topics([NewTopic("a")], validate_only=True)
        await admin.add_partitions({"b": 4}, validate_only=True)
    assert {name: len(partitions) for name, partitions in cluster.topics.items()} == {"b": 1}


async def test_add_partitions(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a", 2)
    async with administering(cluster) as admin:
        results = await admin.add_partitions({"a": 5, "nope": 2})
        assert results["a"] is None and results["nope"] is not None
        error = (await admin.add_partitions({"a": 3}))["a"]
        assert error is not None and error.code is ErrorCode.INVALID_PARTITIONS
    assert len(cluster.topics["a"]) == 5


async def test_configs(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")
    async with administering(cluster) as admin:
        changes = [
            ConfigChange("retention.ms", ConfigOperation.SET, "5"),
            ConfigChange("cleanup.policy", ConfigOperation.APPEND, "compact"),
        ]
        assert await admin.alter_configs({TOPIC_A: changes}) == {TOPIC_A: None}
        entries = (await admin.describe_configs([TOPIC_A]))[TOPIC_A]
        assert not isinstance(entries, ClientError)
        assert [(entry.name, entry.value, entry.source) for entry in entries] == [
            ("cleanup.policy", "compact", ConfigSource.DYNAMIC_TOPIC_CONFIG),
            ("retention.ms", "5", ConfigSource.DYNAMIC_TOPIC_CONFIG),
        ]
        await admin.alter_configs({TOPIC_A: [ConfigChange("retention.ms", ConfigOperation.DELETE)]})
        described = (await admin.describe_configs([TOPIC_A], ["retention.ms"]))[TOPIC_A]
        assert not isinstance(described, ClientError)
        (entry,) = described
        assert entry.is_default and entry.value == "604800000"
        error = (
            await admin.alter_configs({TOPIC_A: [ConfigChange("x", ConfigOperation.SET, "bad")]})
        )[TOPIC_A]
        assert error is not None and error.message == "topic 'a': a bad value"
        missing = Resource(ResourceType.TOPIC, "nope")
        assert isinstance((await admin.describe_configs([missing]))[missing], ClientError)
        node = Resource(ResourceType.BROKER, "1")
        assert not isinstance((await admin.describe_configs([node]))[node], ClientError)


async def test_partition_requests_go_to_their_leaders(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery, nodes=2)
    first, second = cluster.add_topic("a", 2)
    async with administering(cluster) as admin:
        async with open_producer(admin._client) as producer:
            for _ in range(3):
                await producer.send("a", b"x", partition=1, timestamp=5)
        listed = await admin.list_offsets(
            {
                A0: LATEST,
                A1: LATEST,
                TopicPartition("a", 9): EARLIEST,
                TopicPartition("b", 0): LATEST,
            }
        )
        assert listed[A0] == (0, -1, 0) and listed[A1] == (3, -1, 0)
        assert isinstance(listed[TopicPartition("a", 9)], ClientError) and isinstance(
            listed[TopicPartition("b", 0)], ClientError
        )
        assert (await admin.list_offsets({A1: 4}))[A1] == (0, 5, 0)
        second.leader, second.leader_epoch = 1, 1  # a stale view is refreshed
        deleted = await admin.delete_records({A0: 7, A1: END_OF_LOG})
        assert isinstance(deleted[A0], ClientError) and deleted[A1] == 3
        producers = (await admin.describe_producers([A0, A1]))[A1]
        assert not isinstance(producers, ClientError) and producers[0].last_sequence == 2
    assert first.start == 0 and second.start == 3


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (ErrorCode.INVALID_TOPIC_EXCEPTION, "its topic is internal"),
        (ErrorCode.POLICY_VIOLATION, "the cleanup.policy of its topic lacks 'delete'"),
    ],
)
async def test_records_that_cannot_be_deleted(
    nursery: trio.Nursery, code: ErrorCode, reason: str
) -> None:
    """The response has no message, and the remedy of the code is for other requests."""
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")
    row = {"partition_index": 0, "low_watermark": -1, "error_code": int(code)}
    cluster.one.script(DELETE_RECORDS, {"topics": [{"name": "a", "partitions": [row]}]})
    async with administering(cluster) as admin:
        error = (await admin.delete_records({A0: 1}))[A0]
    assert isinstance(error, ClientError) and error.code is code
    assert error.message.startswith(f"records of a-0 cannot be deleted: {reason}")
    assert error.remedy.startswith("choose another topic")


@pytest.mark.parametrize(
    ("resource", "remedy"),
    [
        (Resource(ResourceType.TOPIC, "a"), "`mqctl topic config get a --explain`"),
        (Resource(ResourceType.GROUP, "g"), "`mqctl group config get g --explain`"),
        (Resource(ResourceType.BROKER, "1"), "`mqd config list`"),
    ],
)
async def test_an_invalid_config_names_the_command_for_its_resource(
    nursery: trio.Nursery, resource: Resource, remedy: str
) -> None:
    cluster = FakeCluster(nursery)
    row = {
        "error_code": int(ErrorCode.INVALID_CONFIG),
        "error_message": "Invalid value y for configuration x: Value must be at least 0",
        "resource_type": resource.type,
        "resource_name": resource.name,
    }
    cluster.one.script(INCREMENTAL_ALTER_CONFIGS, {"responses": [row]})
    change = ConfigChange("x", ConfigOperation.SET, "y")
    async with administering(cluster) as admin:
        error = (await admin.alter_configs({resource: [change]}))[resource]
    assert error is not None and error.remedy.count("`") == 2 and remedy in error.remedy


async def test_the_remedy_of_a_broker_replaces_the_general_one(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    row = {
        "error_code": int(ErrorCode.INVALID_CONFIG),
        "error_message": "Unknown topic config name: x; did you mean 'y'?",
        "resource_type": ResourceType.TOPIC,
        "resource_name": "t",
    }
    cluster.one.script(INCREMENTAL_ALTER_CONFIGS, {"responses": [row]})
    resource = Resource(ResourceType.TOPIC, "t")
    async with administering(cluster) as admin:
        change = ConfigChange("x", ConfigOperation.SET, "y")
        error = (await admin.alter_configs({resource: [change]}))[resource]
    assert error is not None
    assert error.message == "topic 't': Unknown topic config name: x"
    assert error.remedy == "did you mean 'y'?"


async def test_nodes_and_disks(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery, nodes=2)
    cluster.add_topic("a")
    async with administering(cluster) as admin:
        described = await admin.describe_cluster()
        assert described.cluster_id == "fake" and described.brokers[1] == BrokerInfo(
            2, "fake", 9002
        )
        cluster.down.add(2)
        directories = await admin.describe_log_dirs([1])
        assert not isinstance(directories[1], ClientError)
        good, bad = directories[1]
        assert good.path == "/data" and good.usable_bytes == 50 and good.replicas[0].tp == A0
        assert bad.error is not None and bad.error.code is ErrorCode.KAFKA_STORAGE_ERROR


async def test_a_dead_node_is_a_partial_result(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery, nodes=2)
    async with administering(cluster, timeout_s=5) as admin:
        await admin.describe_cluster()
        cluster.down.add(2)
        directories = await admin.describe_log_dirs()
        assert not isinstance(directories[1], ClientError)
        assert isinstance(directories[2], DeadlineExceeded)


@pytest.mark.parametrize("code", [ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT])
async def test_retriable_codes_are_retried(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock, code: ErrorCode
) -> None:
    cluster = FakeCluster(nursery)
    cluster.one.script(CREATE_TOPICS, *[{"topics": [{"name": "a", "error_code": int(code)}]}] * 3)
    async with administering(cluster) as admin:
        assert (await admin.create_topic("a")).name == "a"
    assert [key for key, _ in cluster.one.requests].count(CREATE_TOPICS) == 4


async def test_a_deadline_ends_retries_and_names_the_last_failure(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery)
    cluster.one.script(CREATE_TOPICS, *[{"topics": [{"name": "a", "error_code": 41}]}] * 1000)
    async with administering(cluster, timeout_s=7) as admin:
        began = trio.current_time()
        with pytest.raises(DeadlineExceeded, match="not controller") as caught:
            await admin.create_topic("a")
        assert 5 <= trio.current_time() - began <= 7
        assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT


@pytest.mark.parametrize(
    ("key", "name"), [(CREATE_TOPICS, "create_topic"), (DELETE_TOPICS, "delete_topic")]
)
async def test_a_lost_response_is_reported_if_the_retry_finds_the_result(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock, key: int, name: str
) -> None:
    cluster = FakeCluster(nursery)
    if key == DELETE_TOPICS:
        cluster.add_topic("a")
    cluster.one.script(key, HangUp(after=True))
    async with administering(cluster) as admin:
        with pytest.raises(
            ClientError,
            match="an earlier attempt of this call got no response and may have done it",
        ):
            await getattr(admin, name)("a")


async def test_a_response_without_a_requested_row(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    cluster.one.script(CREATE_TOPICS, {"topics": []})
    async with administering(cluster) as admin:
        with pytest.raises(ClientError, match="does not contain a"):
            await admin.create_topic("a")


async def test_an_unknown_error_code_is_still_an_error(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    cluster.one.script(CREATE_TOPICS, {"topics": [{"name": "a", "error_code": 999}]})
    async with administering(cluster) as admin:
        with pytest.raises(ClientError, match="error code 999"):
            await admin.create_topic("a")


async def test_an_old_broker_lacks_an_api(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")
    del cluster.one.versions[61]
    cluster.one.versions |= {CREATE_TOPICS: (2, 2), DELETE_TOPICS: (1, 1), LIST_OFFSETS: (1, 1)}
    async with administering(cluster) as admin:
        error = (await admin.describe_producers([A0]))[A0]
        assert isinstance(error, ClientError) and error.code is ErrorCode.UNSUPPORTED_VERSION
        assert (await admin.create_topic("b")).partitions == -1
        assert (await admin.list_offsets({A0: LATEST}))[A0] == (0, -1, -1)
        await admin.delete_topic("b")


async def test_a_new_controller_is_found(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery, nodes=2)
    async with administering(cluster) as admin:
        await admin.create_topic("a")
        cluster.controller = 2
        await admin.create_topic("b")
    assert [key for key, _ in cluster.brokers[2].requests].count(CREATE_TOPICS) == 1
