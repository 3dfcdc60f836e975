"""A client of a group's offsets, for tests: commits, fetches and deletes through a shard
without Trio.
"""

from __future__ import annotations

from typing import Any

from mqd.coordinator.group.offset_fetch import FetchOffsets
from mqd.coordinator.group.record_codec import encode
from mqd.coordinator.group.records import GroupMetadata, GroupMetadataKey
from mqd.coordinator.group.shard import GroupShard
from mqd.coordinator.shard import NO_PRODUCER, Call, Producer
from mqd.protocol import apis
from tests.coordinator.harness import Harness

PRODUCER = Producer(7, 0)

Group = Harness[GroupShard]


def rows(
    *offsets: tuple[int, int], metadata: str | None = None, epoch: int = -1
) -> list[dict[str, Any]]:
    return [
        {
            "partition_index": partition,
            "committed_offset": offset,
            "committed_leader_epoch": epoch,
            "committed_metadata": metadata,
        }
        for partition, offset in offsets
    ]


def commit(
    group: Group,
    *offsets: tuple[int, int],
    topic: str = "t",
    version: int = 9,
    group_id: str = "g",
    metadata: str | None = None,
    epoch: int = -1,
    **request: Any,
) -> dict[int, int]:
    """Error codes by partition."""
    named = {"name": topic, "partitions": rows(*offsets, metadata=metadata, epoch=epoch)}
    return codes(
        group.call("OffsetCommit", version, {"group_id": group_id, "topics": [named], **request})
    )


def commit_in_transaction(
    group: Group,
    *offsets: tuple[int, int],
    producer: Producer = PRODUCER,
    topic: str = "t",
    **request: Any,
) -> dict[int, int]:
    named = {"name": topic, "partitions": rows(*offsets)}
    who = {
        "transactional_id": "x",
        "group_id": "g",
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
    }
    return codes(group.call("TxnOffsetCommit", 3, {**who, "topics": [named], **request}))


def codes(answer: Any) -> dict[int, int]:
    return {
        row["partition_index"]: row["error_code"]
        for topic in answer["topics"]
        for row in topic["partitions"]
    }


def fetch_response(group: Group, version: int = 9, **request: Any) -> Any:
    wanted = request.pop("topics", None)
    declared = apis.by_name("OffsetFetch")
    groups = [{"group_id": "g", "topics": wanted}]
    decoded = declared.decode_request(
        version, declared.encode_request(version, {"groups": groups})
    ).groups[0]
    op = FetchOffsets(request.pop("group_id", "g"), decoded.topics, **request)
    return group.answer(group.operate(Call("OffsetFetch", version, op)))


def fetched(group: Group, *partitions: int, topic: str = "t", **request: Any) -> dict[int, int]:
    """Offsets by partition; an error is a negative code, below -1."""
    wanted = [{"name": topic, "partition_indexes": partitions or (0, 1, 2)}]
    answer = fetch_response(group, topics=wanted, **request)
    assert [one["name"] for one in answer["topics"]] == [topic] and answer["error_code"] == 0
    return {
        row["partition_index"]: -row["error_code"] or row["committed_offset"]
        for row in answer["topics"][0]["partitions"]
    }


def delete(group: Group, *partitions: int, topic: str = "t", group_id: str = "g") -> dict[int, int]:
    named = {"name": topic, "partitions": [{"partition_index": one} for one in partitions]}
    answer = group.call("OffsetDelete", 0, {"group_id": group_id, "topics": [named]})
    assert answer["error_code"] == 0
    return codes(answer)


def replay(group: Group, value: GroupMetadata) -> None:
    """Create a classic group by replaying its record."""
    record = encode(GroupMetadataKey("g"), value)
    group.log.append((record, NO_PRODUCER))
    group.fail_over()


def log_size(group: Group) -> int:
    return len(group.log)
