"""Findings of a health check, and the responses of a cluster from which they are made. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mqd.client.descriptions import (
    BoundUsage,
    ClusterDescription,
    LogDirectory,
    PartitionState,
    Quorum,
    Reassignment,
)
from mqd.client.errors import ClientError
from mqd.delay_names import DEAD_LETTERS_CONFIG, TARGET_CONFIG
from mqd.errors import ErrorCode
from mqd.types import IN_MEMORY, PRODUCER_ACCESS, STORAGE, TopicPartition

OK, NOTE, WARNING, BAD = "ok", "note", "warning", "bad"
DENIED = "Cluster authorization failed."
DENIED_REMEDY = "log in as a principal with DESCRIBE on the cluster"
"""The remedy of all findings about denied requests; a report has it once."""
TOPIC_KEYS = (TARGET_CONFIG, DEAD_LETTERS_CONFIG, PRODUCER_ACCESS, STORAGE)
"""The configs of topics that a diagnosis reads."""
NAMED_MAX = 5
"""At most this many partitions are named in a finding; it also gives their number."""


class Finding(NamedTuple):
    """One line of a health report. `remedy` is empty if there is nothing to do."""

    check: str
    level: str
    what: str
    remedy: str = ""

    @property
    def healthy(self) -> bool:
        return self.level in (OK, NOTE)


@dataclass(frozen=True, slots=True)
class Observed:
    """The responses of a cluster. Each field has the response or the error."""

    cluster: ClusterDescription | ClientError
    quorum: Quorum | ClientError
    partitions: Mapping[TopicPartition, PartitionState] | ClientError
    moves: Mapping[TopicPartition, Reassignment] | ClientError
    unreachable: Mapping[int, str] = field(default_factory=dict)
    """Brokers that are not fenced, but cannot be reached from here, with the reason."""
    min_isr: Mapping[str, int] | ClientError = field(default_factory=dict)
    topic_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By topic: its values of TOPIC_KEYS. Empty if they could not be read."""
    group_dead_letters: Mapping[str, str] = field(default_factory=dict)
    """By share group: its `errors.deadletterqueue.topic.name`. Empty if they could not be read."""
    creates_topics: bool = False
    """Whether brokers create missing topics (`auto.create.topics.enable`)."""
    disks: Mapping[int, Sequence[LogDirectory] | ClientError] = field(default_factory=dict)
    throttled: str = ""
    """The topics and brokers with a replication throttle, as text."""
    usage: Mapping[int, Sequence[BoundUsage] | ClientError] = field(default_factory=dict)

    def is_in_memory(self, topic: str) -> bool:
        """Whether the topic has `mqd.storage=memory`."""
        return self.topic_configs.get(topic, {}).get(STORAGE) == IN_MEMORY


def named(partitions: list[TopicPartition]) -> str:
    names = ", ".join(map(str, partitions[:NAMED_MAX])) + (
        " .." if len(partitions) > NAMED_MAX else ""
    )
    return f"{len(partitions)} partition{'s' if len(partitions) > 1 else ''} ({names})"


def argument(partitions: list[TopicPartition]) -> str:
    first = f"{partitions[0].topic}:{partitions[0].partition}"
    return first if len(partitions) == 1 else f"{first} .."


def named_ids(role: str, ids: Iterable[int], last: str = "and") -> str:
    """`broker 1`, or `brokers 1, 2 and 3`."""
    names = [str(each) for each in sorted(ids)]
    if len(names) == 1:
        return f"{role} {names[0]}"
    return f"{role}s {', '.join(names[:-1])} {last} {names[-1]}"


def has_controller(observed: Observed) -> bool:
    """Whether a controller is known. If the quorum is not described, because the cluster has no
    DescribeQuorum or denies it, the response to DescribeCluster names the controller.
    """
    if isinstance(observed.quorum, ClientError):
        return (
            observed.quorum.code is ErrorCode.UNSUPPORTED_VERSION or is_denied(observed.quorum)
        ) and controller_id(observed) >= 0
    return observed.quorum.leader_id >= 0


def is_denied(error: ClientError) -> bool:
    """Whether the principal lacks DESCRIBE on the cluster, which requests of a check need."""
    return error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def reason_of(error: ClientError) -> str:
    """Why a request failed, for the end of a sentence."""
    return DENIED if is_denied(error) else error.message


def remedy_of(error: ClientError) -> str:
    return DENIED_REMEDY if is_denied(error) else error.remedy


def controller_id(observed: Observed) -> int:
    return -1 if isinstance(observed.cluster, ClientError) else observed.cluster.controller_id
