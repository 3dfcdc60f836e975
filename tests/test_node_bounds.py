"""One client fills the memory limits of a node: other clients continue, the operator is warned, and
the node restarts.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from mqd.client.peer import PeerConnection
from mqd.errors import ErrorCode
from mqd.limits import MIB
from tests.nodes import ask, batch, connected, create_topic, node, produce

OPTIONS = {
    "metadata.image.max.bytes": str(MIB),
    "group.coordinator.memory.bytes": str(MIB),
    "transaction.coordinator.memory.bytes": str(MIB),
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
NOT_YET = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)


async def coordinated(client: PeerConnection, key_type: int) -> None:
    """Wait until the coordinator is ready."""
    api, version = ("init_producer_id", 4) if key_type else ("offset_fetch", 7)
    body = (
        {"transactional_id": "first", "transaction_timeout_ms": 60_000}
        if key_type
        else {"group_id": "first", "topics": None}
    )
    with trio.fail_after(20):
        while True:
            await ask(client, "find_coordinator", 3, {"key": "first", "key_type": key_type})
            if (await ask(client, api, version, body)).error_code not in NOT_YET:
                return
            await trio.sleep(0.02)


async def commit(client: PeerConnection, group_id: str, offset: int = 5) -> ErrorCode:
    rows = [{"partition_index": 0, "committed_offset": offset, "committed_metadata": "m" * 4_000}]
    answer = await ask(
        client,
        "offset_commit",
        8,
        {"group_id": group_id, "topics": [{"name": "t", "partitions": rows}]},
    )
    return ErrorCode(answer.topics[0].partitions[0].error_code)


async def initialize(client: PeerConnection, name: str) -> ErrorCode:
    answer = await ask(
        client, "init_producer_id", 4, {"transactional_id": name, "transaction_timeout_ms": 60_000}
    )
    return ErrorCode(answer.error_code)


async def fill_groups_configs(client: PeerConnection) -> ErrorCode:
    """Overrides of groups that do not exist, in requests of 200."""
    for request in range(20):
        value = "45000" + " " * 4_000
        change = {"name": "consumer.session.timeout.ms", "config_operation": 0, "value": value}
        resources = [
            {"resource_type": 32, "resource_name": f"g{request}-{n}", "configs": [change]}
            for n in range(200)
        ]
        answer = await ask(
            client, "incremental_alter_configs", 1, {"resources": resources, "validate_only": False}
        )
        codes = {ErrorCode(row.error_code) for row in answer.responses}
        if codes != {ErrorCode.NONE}:
            return max(codes)
    return ErrorCode.NONE


async def fill_with_topics(client: PeerConnection) -> ErrorCode:
    """Topics of one partition, each with an override of 16 KB."""
    for number in range(100):
        wide = ",".join(f"{one}:1" for one in range(2_400))
        configs = [{"name": "leader.replication.throttled.replicas", "value": wide}]
        topic = {
            "name": f"wide-{number}",
            "num_partitions": 1,
            "replication_factor": 1,
            "configs": configs,
        }
        (row,) = (
            await ask(client, "create_topics", 7, {"topics": [topic], "timeout_ms": 10_000})
        ).topics
        if row.error_code:
            return ErrorCode(row.error_code)
    return ErrorCode.NONE


async def usage(client: PeerConnection) -> dict[str, float]:
    answer = await ask(client, "describe_cluster", 2, {"usage_wanted": True})
    return {row.bound: row.used_bytes / row.bytes_max for row in answer.usage}


@pytest.mark.slow
async def test_every_bound_holds_is_shown_and_survives_a_restart(tmp_path: Path) -> None:
    async with node(tmp_path, options=OPTIONS) as running, connected(running) as client:
        assert not (await ask(client, "describe_cluster", 2, {})).usage, (
            "only on the wire on request"
        )
        await create_topic(client, "t")
        await coordinated(client, 0)
        await coordinated(client, 1)
        groups = [await commit(client, f"group-{number}") for number in range(300)]
        made = groups.index(ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
        assert 100 < made < 250
        ids = [await initialize(client, f"id-{number}") for number in range(1_200)]
        known = ids.index(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        assert 800 < known < 1_100
        assert await fill_groups_configs(client) is ErrorCode.POLICY_VIOLATION
        assert 0.2 < (await usage(client))["metadata"] < 0.3, "overrides of groups have a share"
        assert await fill_with_topics(client) is ErrorCode.POLICY_VIOLATION
        full = await usage(client)
        assert full.keys() == {"metadata", "__consumer_offsets-0", "__transaction_state-0"}
        assert all(0.9 < share <= 1.0 for share in full.values()), full
        assert await commit(client, "group-0", 6) is ErrorCode.NONE
        assert await initialize(client, "id-0") is ErrorCode.NONE
    async with node(tmp_path, options=OPTIONS) as running, connected(running) as client:
        await coordinated(client, 0)
        await coordinated(client, 1)
        assert await usage(client) == full
        assert await commit(client, "group-1") is ErrorCode.NONE
        assert await commit(client, "one more") is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        assert await initialize(client, "id-1") is ErrorCode.NONE
        assert await initialize(client, "one more") is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_file_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that the node could not open is refused; its other partitions stay online."""
    monkeypatch.setattr("mqd.daemon._DESCRIPTORS_SHARED", 200)
    async with node(tmp_path) as running, connected(running) as client:
        await create_topic(client, "t")
        topics = [{"name": "large", "num_partitions": 100, "replication_factor": 1}]
        answer = await ask(client, "create_topics", 7, {"topics": topics, "timeout_ms": 10_000})
        (row,) = answer.topics
        assert row.error_code == ErrorCode.POLICY_VIOLATION
        assert "its limit of open files allows" in row.error_message
        assert "Raise the limit (ulimit -n, or LimitNOFILE" in row.error_message
        more = {"name": "t", "count": 101, "assignments": None}
        body = {"topics": [more], "timeout_ms": 10_000, "validate_only": False}
        (grown,) = (await ask(client, "create_partitions", 3, body)).results
        assert grown.error_code == ErrorCode.POLICY_VIOLATION
        await create_topic(client, "small", 20)
        for index in (0, 19):
            assert (await produce(client, "small", batch(b"x"), partition=index)).error_code == 0
