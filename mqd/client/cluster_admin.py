"""Looking at the machinery of a cluster and moving it: brokers, disks, the quorum, leaders, in-sync
replicas, reassignments.

`Admin` has these calls too. They are about replicas and leaders, not about the users' data.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from mqd.client.arguments import (
    INT32_MAX,
    check_flag,
    check_member,
    check_topics,
    check_whole,
    check_wholes,
)
from mqd.client.calls import Calls, Outcomes, by_topic, outcomes_of
from mqd.client.descriptions import (
    BoundUsage,
    ClusterDescription,
    ElectionType,
    Feature,
    LogDirectory,
    PartitionState,
    Quorum,
    QuorumReplica,
    Reassignment,
    ReplicaOnDisk,
)
from mqd.client.errors import ClientError, error_from_wire
from mqd.client.metadata import BrokerInfo, PartitionInfo
from mqd.client.resource_arguments import check_levels, check_partitions, check_targets
from mqd.errors import ErrorCode
from mqd.protocol.apis import SOFTWARE
from mqd.types import TopicPartition

DESCRIBE_LOG_DIRS, ELECT_LEADERS, ALTER_PARTITION_REASSIGNMENTS, LIST_PARTITION_REASSIGNMENTS = (
    35,
    43,
    45,
    46,
)
API_VERSIONS, UPDATE_FEATURES = 18, 57
DESCRIBE_QUORUM, DESCRIBE_CLUSTER, UNREGISTER_BROKER, DESCRIBE_TOPIC_PARTITIONS = 55, 60, 64, 75

METADATA_TOPIC = "__cluster_metadata"
PAGE_PARTITIONS = 2000


class ClusterAdmin(Calls):
    """Calls about brokers and replicas."""

    # -- brokers

    async def describe_cluster(self) -> ClusterDescription:
        """The brokers and the controller; fenced brokers, too, if the broker reports them."""

        async def attempt() -> ClusterDescription:
            response = await self._client.request_any(
                DESCRIBE_CLUSTER, {"include_fenced_brokers": True}
            )
            if response.error_code:
                raise error_from_wire(
                    response.error_code, "describing the cluster", response.error_message
                )
            brokers = sorted(
                (
                    BrokerInfo(row.broker_id, row.host, row.port, row.rack)
                    for row in response.brokers
                ),
                key=lambda each: each.node_id,
            )
            fenced = frozenset(row.broker_id for row in response.brokers if row.is_fenced)
            return ClusterDescription(
                response.cluster_id, response.controller_id, tuple(brokers), fenced
            )

        return await self._retry("describing the cluster", attempt)

    async def describe_log_dirs(
        self, node_ids: Iterable[int] | None = None
    ) -> dict[int, list[LogDirectory] | ClientError]:
        """The log directories of the given brokers (all by default) and their replicas."""
        if node_ids is None:
            wanted = sorted((await self._client.refresh([])).brokers)
        else:
            wanted = _node_ids(node_ids)

        async def request(node_id: int, _: list[int]) -> Outcomes:
            response = await self._client.request_broker(
                node_id, DESCRIBE_LOG_DIRS, {"topics": None}
            )
            if response.error_code:
                return Outcomes(
                    {node_id: error_from_wire(response.error_code, "describing log directories")},
                    {},
                )
            return Outcomes({node_id: [_log_directory(row) for row in response.results]}, {})

        async def attempt(left: list[int]) -> Outcomes:
            outcomes = Outcomes({}, {})
            await self._request_all({node_id: [node_id] for node_id in left}, request, outcomes)
            return outcomes

        return await self._each("describing log directories", wanted, attempt)

    async def describe_usage(
        self, node_ids: Iterable[int]
    ) -> dict[int, list[BoundUsage] | ClientError]:
        """The usage of the bounds of the given brokers. Apache Kafka's brokers report none."""
        wanted = _node_ids(node_ids)

        async def request(node_id: int, _: list[int]) -> Outcomes:
            response = await self._client.request_broker(
                node_id, DESCRIBE_CLUSTER, {"usage_wanted": True}
            )
            if response.error_code:
                return Outcomes(
                    {node_id: error_from_wire(response.error_code, f"usage of broker {node_id}")},
                    {},
                )
            return Outcomes(
                {
                    node_id: [
                        BoundUsage(row.bound, row.used_bytes, row.bytes_max)
                        for row in response.usage
                    ]
                },
                {},
            )

        async def attempt(left: list[int]) -> Outcomes:
            outcomes = Outcomes({}, {})
            await self._request_all({node_id: [node_id] for node_id in left}, request, outcomes)
            return outcomes

        return await self._each("describing usage", wanted, attempt)

    async def unregister_broker(self, node_id: int) -> None:
        """Unregister a broker that will not return.

        Raises ClientError, with BROKER_ID_NOT_REGISTERED if it is not known.
        """
        check_whole("node_id", node_id, 0)

        async def attempt() -> None:
            response = await self._client.request_controller(
                UNREGISTER_BROKER, {"broker_id": node_id}
            )
            if response.error_code:
                raise error_from_wire(
                    response.error_code, f"unregistering broker {node_id}", response.error_message
                )

        await self._retry(f"unregistering broker {node_id}", attempt)

    async def describe_features(self) -> list[Feature]:
        """Features by name, as the controller knows them (KIP-584)."""

        async def attempt() -> list[Feature]:
            await self._client.refresh([])
            response = await self._client.request_controller(
                API_VERSIONS, {"client_software_name": SOFTWARE, "client_software_version": "1"}
            )
            if response.error_code:
                raise error_from_wire(response.error_code, "describing features")
            levels = {row.name: row.max_version_level for row in response.finalized_features}
            return sorted(
                Feature(row.name, levels.get(row.name, 0), row.min_version, row.max_version)
                for row in response.supported_features
            )

        return await self._retry("describing features", attempt)

    async def update_features(
        self, levels: Mapping[str, int], *, validate_only: bool = False
    ) -> None:
        """Finalize higher levels of features.

        Raises ClientError, with INVALID_UPDATE_VERSION if a broker does not support them.
        """
        check_levels("levels", levels)
        check_flag("validate_only", validate_only)

        async def attempt() -> None:
            updates = [
                {"feature": name, "max_version_level": level} for name, level in levels.items()
            ]
            body = {
                "timeout_ms": self._timeout_ms,
                "feature_updates": updates,
                "validate_only": validate_only,
            }
            response = await self._client.request_controller(UPDATE_FEATURES, body)
            if response.error_code:
                raise error_from_wire(
                    response.error_code, "finalizing features", response.error_message
                )

        await self._retry("finalizing features", attempt)

    async def describe_quorum(self) -> Quorum:
        """The leader of the metadata log, and the progress of voters and observers (KIP-595,
        KIP-836).
        """
        subject = "describing the quorum"

        async def attempt() -> Quorum:
            requested = {
                "topics": [{"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0}]}]
            }
            response = await self._client.request_any(DESCRIBE_QUORUM, requested)
            if response.error_code:
                raise error_from_wire(response.error_code, subject, response.error_message)
            rows = [row for topic in response.topics for row in topic.partitions]
            if len(rows) != 1:
                raise ClientError(
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                    f"{subject}: the response has {len(rows)} partitions in place of one",
                )
            (row,) = rows
            if row.error_code:
                raise error_from_wire(row.error_code, subject, row.error_message)
            return Quorum(
                leader_id=row.leader_id,
                leader_epoch=row.leader_epoch,
                high_watermark=row.high_watermark,
                voters=tuple(map(_quorum_replica, row.current_voters)),
                observers=tuple(map(_quorum_replica, row.observers)),
            )

        return await self._retry(subject, attempt)

    # -- partitions and their replicas

    async def describe_partitions(
        self, topics: Collection[str] | None = None
    ) -> dict[TopicPartition, PartitionState]:
        """Leader, replicas, ISR, ELR and offline replicas of every partition of the topics, or of
        all topics, in order.

        Topics that do not exist are left out. A broker without DescribeTopicPartitions (KIP-966)
        gets a Metadata request, which has no ELR.
        """
        wanted = None if topics is None else check_topics("topics", topics)

        async def attempt() -> dict[TopicPartition, PartitionState]:
            try:
                return await self._describe_partitions(wanted)
            except ClientError as error:
                if error.code is not ErrorCode.UNSUPPORTED_VERSION:
                    raise
            view = await self._client.refresh(wanted)
            return {
                TopicPartition(topic.name, each.partition): _state_of(each, topic.internal)
                for topic in sorted(view.topics.values(), key=lambda topic: topic.name)
                if wanted is None or topic.name in wanted
                for each in topic.partitions
            }

        if wanted == []:
            return {}
        return await self._retry("describing partitions", attempt)

    async def _describe_partitions(
        self, topics: Collection[str] | None
    ) -> dict[TopicPartition, PartitionState]:
        found: dict[TopicPartition, PartitionState] = {}
        names = sorted(topics or ())
        cursor: Any = None
        while True:
            body = {
                "topics": [
                    {"name": name} for name in names if cursor is None or name >= cursor.topic_name
                ],
                "response_partition_limit": PAGE_PARTITIONS,
                "cursor": cursor,
            }
            response = await self._client.request_any(DESCRIBE_TOPIC_PARTITIONS, body)
            for topic in response.topics:
                if topic.error_code and topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise error_from_wire(topic.error_code, f"topic {topic.name!r}")
                for row in topic.partitions:
                    found[TopicPartition(topic.name, row.partition_index)] = _partition_state(
                        row, topic.is_internal
                    )
            here, cursor = cursor, response.next_cursor
            if cursor is None:
                return found
            if here is not None and (cursor.topic_name, cursor.partition_index) <= (
                here.topic_name,
                here.partition_index,
            ):
                raise ClientError(
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                    "describing partitions: the broker's pages do not go forward",
                )

    async def elect_leaders(
        self, kind: ElectionType, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, ClientError | None]:
        """Elect leaders of the partitions, or of all (then those that needed no election are left
        out).

        None for each that was elected, else the error: ELECTION_NOT_NEEDED,
        PREFERRED_LEADER_NOT_AVAILABLE, ELIGIBLE_LEADERS_NOT_AVAILABLE ... An unclean election loses
        the records that only the dead replicas had.
        """
        check_member("kind", kind, ElectionType)
        chosen = None if partitions is None else check_partitions("partitions", partitions)

        def body(wanted: Iterable[TopicPartition] | None) -> dict[str, Any]:
            topics = None
            if wanted is not None:
                topics = [
                    {"topic": name, "partitions": indexes}
                    for name, indexes in _indexes(wanted).items()
                ]
            return {
                "election_type": kind,
                "topic_partitions": topics,
                "timeout_ms": self._timeout_ms,
            }

        async def request(wanted: Iterable[TopicPartition] | None) -> Outcomes:
            response = await self._client.request_controller(ELECT_LEADERS, body(wanted))
            if response.error_code:
                raise error_from_wire(response.error_code, "electing leaders")
            return outcomes_of(
                (TopicPartition(topic.topic, row.partition_id), row, row.error_message, None)
                for topic in response.replica_election_results
                for row in topic.partition_result
            )

        if chosen is None:

            async def attempt() -> dict[TopicPartition, ClientError | None]:
                outcomes = await request(None)
                return {**outcomes.done, **outcomes.to_retry}

            return await self._retry("electing leaders", attempt)
        results: dict[TopicPartition, ClientError | None] = await self._each(
            "electing leaders", chosen, request
        )
        return results

    async def alter_partition_reassignments(
        self, targets: Mapping[TopicPartition, Sequence[int] | None]
    ) -> dict[TopicPartition, ClientError | None]:
        """Begin to move each partition to its target replicas, preferred leader first; None cancels
        what is under way (KIP-455).

        Returns when the moves have begun; `list_partition_reassignments` lists those in progress.
        """
        check_targets("targets", targets)

        async def attempt(left: list[TopicPartition]) -> Outcomes:
            topics = by_topic(
                left,
                lambda tp: {
                    "partition_index": tp.partition,
                    "replicas": None if (target := targets[tp]) is None else list(target),
                },
            )
            body = {
                "timeout_ms": self._timeout_ms,
                "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
            }
            response = await self._client.request_controller(ALTER_PARTITION_REASSIGNMENTS, body)
            if response.error_code:
                raise error_from_wire(
                    response.error_code, "moving partitions", response.error_message
                )
            return outcomes_of(
                (TopicPartition(topic.name, row.partition_index), row, row.error_message, None)
                for topic in response.responses
                for row in topic.partitions
            )

        results: dict[TopicPartition, ClientError | None] = await self._each(
            "moving partitions",
            list(targets),
            attempt,
            repeated=ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        )
        return results

    async def list_partition_reassignments(
        self, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """The moves that are under way, of the given partitions or of all, in order."""
        chosen = None if partitions is None else check_partitions("partitions", partitions)
        if chosen == []:
            return {}

        async def attempt() -> dict[TopicPartition, Reassignment]:
            topics = None
            if chosen is not None:
                topics = [
                    {"name": name, "partition_indexes": indexes}
                    for name, indexes in _indexes(chosen).items()
                ]
            response = await self._client.request_controller(
                LIST_PARTITION_REASSIGNMENTS, {"timeout_ms": self._timeout_ms, "topics": topics}
            )
            if response.error_code:
                raise error_from_wire(response.error_code, "listing moves", response.error_message)
            found = {
                TopicPartition(topic.name, row.partition_index): Reassignment(
                    tuple(row.replicas), tuple(row.adding_replicas), tuple(row.removing_replicas)
                )
                for topic in response.topics
                for row in topic.partitions
            }
            return dict(sorted(found.items()))

        return await self._retry("listing moves", attempt)


def _node_ids(node_ids: Iterable[int]) -> list[int]:
    return check_wholes("node_ids", node_ids, 0, INT32_MAX)


def _indexes(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for tp in partitions:
        topics.setdefault(tp.topic, []).append(tp.partition)
    return topics


def _partition_state(row: Any, internal: bool) -> PartitionState:
    return PartitionState(
        leader=row.leader_id,
        leader_epoch=row.leader_epoch,
        replicas=tuple(row.replica_nodes),
        isr=tuple(row.isr_nodes),
        elr=tuple(row.eligible_leader_replicas or ()),
        last_known_elr=tuple(row.last_known_elr or ()),
        offline=tuple(row.offline_replicas),
        internal=internal,
    )


def _state_of(info: PartitionInfo, internal: bool) -> PartitionState:
    return PartitionState(
        info.leader, info.leader_epoch, info.replicas, info.isr, (), (), info.offline, internal
    )


def _quorum_replica(row: Any) -> QuorumReplica:
    return QuorumReplica(
        row.replica_id,
        row.log_end_offset,
        row.last_fetch_timestamp,
        row.last_caught_up_timestamp,
        row.no_connection_reason,
    )


def _log_directory(row: Any) -> LogDirectory:
    replicas = tuple(
        ReplicaOnDisk(
            TopicPartition(topic.name, each.partition_index),
            each.partition_size,
            each.offset_lag,
            each.is_future_key,
        )
        for topic in row.topics
        for each in topic.partitions
    )
    error = error_from_wire(row.error_code, row.log_dir) if row.error_code else None
    return LogDirectory(row.log_dir, replicas, row.total_bytes, row.usable_bytes, error)
