"""Attacks that fill the coordinator and the metadata: members, groups, committed offsets,
configurations and topics.
"""

from __future__ import annotations

import uuid
from typing import Any

from mqd.testing.requests import frame
from tests.hostile.attack import KNOWN_TOPIC, PIPELINED, Attack
from tests.hostile.wire import Wire

GROUP_RESOURCE = 32
JOINED_PROTOCOLS = 5_000
WAITING_PROTOCOLS = 50
WAITING_METADATA_BYTES = 4_000
GROUP_NAME_CHARS = 4_000
COMMITTED_PARTITIONS = 100
COMMITTED_METADATA_BYTES = 1_000
CONFIGURED_AT_ONCE = 100
TOPICS_AT_ONCE = 10
TOPIC_NAME_CHARS = 249


def _name(chars: int) -> str:
    """A new name of that many characters."""
    return uuid.uuid4().hex.ljust(chars, "x")


def _join(group: str, protocols: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "group_id": group,
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 60_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": protocols,
    }


class ManyProtocols(Attack):
    """JoinGroups that name thousands of protocols."""

    name = "JoinGroup with 5,000 protocols"

    def prepare(self) -> None:
        protocols = [{"name": f"p{number}", "metadata": b""} for number in range(JOINED_PROTOCOLS)]
        self.bytes = frame("join_group", 9, _join("protocols", protocols))

    def round(self, wire: Wire) -> None:
        wire.send(self.bytes)
        wire.receive()


class WaitingMembers(Attack):
    """Members of one group, each of which waits until the others rejoin. They never do."""

    name = "members that wait for one another"

    def prepare(self) -> None:
        protocols = [
            {"name": f"p{number}", "metadata": bytes(WAITING_METADATA_BYTES)}
            for number in range(WAITING_PROTOCOLS)
        ]
        self.bytes = frame("join_group", 3, _join("waiting", protocols))

    def round(self, wire: Wire) -> None:
        wire.send(self.bytes)
        wire.receive()


class Groups(Attack):
    """New groups with long names, and offsets with much metadata that they commit."""

    name = "groups with long names and offsets"

    def prepare(self) -> None:
        metadata = "x" * COMMITTED_METADATA_BYTES
        rows = [
            {"partition_index": index, "committed_offset": 1, "committed_metadata": metadata}
            for index in range(min(self.known, COMMITTED_PARTITIONS))
        ]
        self.topics = [{"name": KNOWN_TOPIC, "partitions": rows}]

    def round(self, wire: Wire) -> None:
        commit = {"group_id": _name(GROUP_NAME_CHARS), "topics": self.topics}
        wire.send(frame("offset_commit", 8, commit))
        joins = [
            frame(
                "join_group",
                9,
                _join(_name(GROUP_NAME_CHARS), [{"name": "range", "metadata": b""}]),
            )
            for _ in range(PIPELINED)
        ]
        wire.send(b"".join(joins))
        for _ in range(1 + PIPELINED):
            wire.receive()


class GroupConfigs(Attack):
    """Configurations of groups that do not exist, with long names."""

    name = "configurations of groups"

    def prepare(self) -> None:
        self.configs = [
            {"name": "consumer.session.timeout.ms", "config_operation": 0, "value": "50000"}
        ]

    def round(self, wire: Wire) -> None:
        resources = [
            {
                "resource_type": GROUP_RESOURCE,
                "resource_name": _name(GROUP_NAME_CHARS),
                "configs": self.configs,
            }
            for _ in range(CONFIGURED_AT_ONCE)
        ]
        wire.send(
            frame("incremental_alter_configs", 1, {"resources": resources, "validate_only": False})
        )
        wire.receive()


class Topics(Attack):
    """Topics with long names that are created and deleted."""

    name = "topics, created and deleted"

    def prepare(self) -> None:
        pass

    def round(self, wire: Wire) -> None:
        names = [_name(TOPIC_NAME_CHARS) for _ in range(TOPICS_AT_ONCE)]
        topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in names]
        wire.send(frame("create_topics", 7, {"topics": topics, "timeout_ms": 10_000}))
        wire.send(
            frame(
                "delete_topics",
                6,
                {"topics": [{"name": name} for name in names], "timeout_ms": 10_000},
            )
        )
        wire.receive()
        wire.receive()
