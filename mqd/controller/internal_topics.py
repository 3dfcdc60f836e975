"""CreateTopics requests for topics that the cluster creates itself: internal topics, and topics
that a client requested before they existed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from mqd.config import NodeConfig
from mqd.controller.create_topics import USE_DEFAULT
from mqd.controller.placement import default_replication_factor
from mqd.limits import PARTITIONS_PER_REQUEST_MAX
from mqd.types import GROUPS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC


class _InternalOptions(NamedTuple):
    """The options for the creation of an internal topic."""

    partitions: str
    replication_factor: str
    segment_bytes: str
    min_isr: str | None = None


_INTERNAL_OPTIONS = {
    GROUPS_TOPIC: _InternalOptions(
        "offsets.topic.num.partitions",
        "offsets.topic.replication.factor",
        "offsets.topic.segment.bytes",
    ),
    TRANSACTIONS_TOPIC: _InternalOptions(
        "transaction.state.log.num.partitions",
        "transaction.state.log.replication.factor",
        "transaction.state.log.segment.bytes",
        "transaction.state.log.min.isr",
    ),
    SHARE_STATE_TOPIC: _InternalOptions(
        "share.coordinator.state.topic.num.partitions",
        "share.coordinator.state.topic.replication.factor",
        "share.coordinator.state.topic.segment.bytes",
        "share.coordinator.state.topic.min.isr",
    ),
}


def new_topic_request(name: str, config: NodeConfig, nodes: int) -> dict[str, Any]:
    """The row of a CreateTopics request for a topic that is created automatically.

    Internal topics have options of their own. Their replication factor and min.insync.replicas are
    at most `nodes`, the nodes of the cluster. Their creation fails until so many are registered.
    """
    row: dict[str, Any] = {
        "name": name,
        "num_partitions": USE_DEFAULT,
        "replication_factor": USE_DEFAULT,
        "assignments": [],
        "configs": [],
    }
    options = _INTERNAL_OPTIONS.get(name)
    if options is not None:
        row["num_partitions"] = config.integer(options.partitions)
        factor = row["replication_factor"] = default_replication_factor(
            config.integer(options.replication_factor), nodes
        )
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": config.integer(options.segment_bytes),
        }
        if name == SHARE_STATE_TOPIC:  # its coordinator deletes the old records
            configs.update({"cleanup.policy": "delete", "retention.ms": -1})
        if options.min_isr is not None:
            configs["min.insync.replicas"] = min(config.integer(options.min_isr), factor)
            configs["unclean.leader.election.enable"] = "false"
        row["configs"] = [{"name": key, "value": str(value)} for key, value in configs.items()]
    return row


def new_topic_requests(
    names: Iterable[str], config: NodeConfig, nodes: int
) -> Iterator[list[dict[str, Any]]]:
    """Such rows in portions, each with no more partitions than a request may add. A larger request
    would always fail.
    """
    portion: list[dict[str, Any]] = []
    room = PARTITIONS_PER_REQUEST_MAX
    for name in names:
        row = new_topic_request(name, config, nodes)
        partitions = (
            config.integer("num.partitions")
            if row["num_partitions"] == USE_DEFAULT
            else row["num_partitions"]
        )
        if portion and partitions > room:
            yield portion
            portion, room = [], PARTITIONS_PER_REQUEST_MAX
        portion.append(row)
        room -= partitions
    if portion:
        yield portion
