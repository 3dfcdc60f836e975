"""Looking at a cluster and changing it: topics, partitions, configurations, offsets, nodes and their disks.

Calls about several things return a result or a ClientError for each, and raise only when nothing could be asked.
What the broker calls retriable is tried again until `timeout_s`; a change whose answer was lost may have happened, and
the second attempt then finds it done: the error for that says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import trio

from mqd.client.cluster import ClusterClient
from mqd.client.descriptions import (
    ActiveProducer,
    ClusterDescription,
    ConfigChange,
    ConfigEntry,
    ConfigSource,
    CreatedTopic,
    ListedOffset,
    LogDirectory,
    NewTopic,
    ReplicaOnDisk,
    Resource,
    ResourceType,
)
from mqd.client.errors import ClientError, DeadlineExceeded, error_from_wire
from mqd.client.metadata import BrokerInfo, TopicInfo
from mqd.errors import ErrorCode, MqError
from mqd.types import TopicPartition

LIST_OFFSETS, CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS = 2, 19, 20, 21
DESCRIBE_CONFIGS, DESCRIBE_LOG_DIRS, CREATE_PARTITIONS, INCREMENTAL_ALTER_CONFIGS = 32, 35, 37, 44
DESCRIBE_CLUSTER, DESCRIBE_PRODUCERS = 60, 61

ItemT = TypeVar("ItemT")
KeyT = TypeVar("KeyT")


class _Outcomes(NamedTuple):
    """One attempt: results by key, and the keys worth another attempt with their errors."""

    done: dict[Any, Any]
    again: dict[Any, ClientError]


class Admin:
    """Administration over a ClusterClient. `timeout_s` bounds each call, retries included."""

    def __init__(self, client: ClusterClient, *, timeout_s: float = 30.0) -> None:
        self._client = client
        self._timeout_s = timeout_s

    # -- topics

    async def create_topics(self, topics: Iterable[NewTopic], *, validate_only: bool = False) -> dict[str, CreatedTopic | ClientError]:
        """Create topics; each name has its result. With `validate_only` nothing is changed."""
        wanted = {topic.name: topic for topic in topics}

        async def attempt(names: list[str]) -> _Outcomes:
            body = {
                "topics": [_new_topic(wanted[name]) for name in names],
                "timeout_ms": self._timeout_ms,
                "validate_only": validate_only,
            }
            answer = await self._client.request_controller(CREATE_TOPICS, body)
            return _sort(
                (row.name, row, row.error_message, CreatedTopic(row.name, row.topic_id, row.num_partitions, row.replication_factor))
                for row in answer.topics
            )

        return await self._each("creating topics", list(wanted), attempt, repeated=ErrorCode.TOPIC_ALREADY_EXISTS)

    async def create_topic(
        self, name: str, partitions: int = -1, replication_factor: int = -1, configs: Mapping[str, str] | None = None
    ) -> CreatedTopic:
        """Create one topic; raises the ClientError that the broker answers."""
        results = await self.create_topics([NewTopic(name, partitions, replication_factor, configs or {})])
        return _raised(results[name])

    async def delete_topics(self, names: Iterable[str]) -> dict[str, ClientError | None]:
        """Delete topics with all their records. None for each that is gone."""

        async def attempt(left: list[str]) -> _Outcomes:
            body = {"topics": [{"name": name} for name in left], "topic_names": left, "timeout_ms": self._timeout_ms}
            answer = await self._client.request_controller(DELETE_TOPICS, body)
            return _sort((row.name, row, row.error_message, None) for row in answer.responses)

        results: dict[str, ClientError | None] = await self._each(
            "deleting topics", list(names), attempt, repeated=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
        return results

    async def delete_topic(self, name: str) -> None:
        _raised((await self.delete_topics([name]))[name])

    async def add_partitions(self, totals: Mapping[str, int], *, validate_only: bool = False) -> dict[str, ClientError | None]:
        """Raise each topic's number of partitions to the given total. Keys map to other partitions from then on."""

        async def attempt(left: list[str]) -> _Outcomes:
            topics = [{"name": name, "count": totals[name], "assignments": None} for name in left]
            body = {"topics": topics, "timeout_ms": self._timeout_ms, "validate_only": validate_only}
            answer = await self._client.request_controller(CREATE_PARTITIONS, body)
            return _sort((row.name, row, row.error_message, None) for row in answer.results)

        results: dict[str, ClientError | None] = await self._each("adding partitions", list(totals), attempt)
        return results

    async def list_topics(self, *, internal: bool = False) -> list[TopicInfo]:
        """All topics by name; `internal` includes those that the cluster keeps for itself."""

        async def attempt() -> list[TopicInfo]:
            view = await self._client.refresh(None)
            return sorted((topic for topic in view.topics.values() if internal or not topic.internal), key=lambda topic: topic.name)

        return await self._retry("listing topics", attempt)

    async def describe_topics(self, names: Iterable[str]) -> dict[str, TopicInfo | ClientError]:
        """Topics with their partitions, leaders and replicas."""

        async def attempt(left: list[str]) -> _Outcomes:
            view = await self._client.refresh(left)
            outcomes = _Outcomes({}, {})
            for name in left:
                topic = view.topics.get(name)
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic is None else topic.error_code
                if not code:
                    outcomes.done[name] = topic
                    continue
                error = error_from_wire(code, f"topic {name!r}", _MISSING.get(code))
                (outcomes.again if error.code is ErrorCode.LEADER_NOT_AVAILABLE else outcomes.done)[name] = error
            return outcomes

        return await self._each("describing topics", list(names), attempt)

    # -- configurations

    async def describe_configs(
        self, resources: Iterable[Resource], keys: Collection[str] | None = None, *, documentation: bool = False
    ) -> dict[Resource, list[ConfigEntry] | ClientError]:
        """The effective configuration of each resource, all keys or those named, sorted by name."""

        async def attempt(left: list[Resource]) -> _Outcomes:
            outcomes = _Outcomes({}, {})
            for node_id, group in _by_node(left).items():
                body = {
                    "resources": [
                        {"resource_type": each.type, "resource_name": each.name, "configuration_keys": None if keys is None else list(keys)}
                        for each in group
                    ],
                    "include_documentation": documentation,
                }
                answer = await self._request(node_id, DESCRIBE_CONFIGS, body)
                found = _sort((_resource(row), row, row.error_message, _config_entries(row)) for row in answer.results)
                outcomes.done.update(found.done)
                outcomes.again.update(found.again)
            return outcomes

        return await self._each("describing configurations", list(resources), attempt)

    async def alter_configs(
        self, changes: Mapping[Resource, Sequence[ConfigChange]], *, validate_only: bool = False
    ) -> dict[Resource, ClientError | None]:
        """Change keys one by one and leave all others (KIP-339). All changes of a resource are made, or none."""

        async def attempt(left: list[Resource]) -> _Outcomes:
            outcomes = _Outcomes({}, {})
            for node_id, group in _by_node(left).items():
                rows = [
                    {
                        "resource_type": each.type,
                        "resource_name": each.name,
                        "configs": [
                            {"name": change.name, "config_operation": change.operation, "value": change.value} for change in changes[each]
                        ],
                    }
                    for each in group
                ]
                answer = await self._request(node_id, INCREMENTAL_ALTER_CONFIGS, {"resources": rows, "validate_only": validate_only})
                found = _sort((_resource(row), row, row.error_message, None) for row in answer.responses)
                outcomes.done.update(found.done)
                outcomes.again.update(found.again)
            return outcomes

        results: dict[Resource, ClientError | None] = await self._each("altering configurations", list(changes), attempt)
        return results

    # -- partitions

    async def list_offsets(
        self, specs: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, ListedOffset | ClientError]:
        """For each partition the first offset at or after a timestamp in ms, or LATEST, EARLIEST, MAX_TIMESTAMP ...

        A timestamp after the last record gives offset -1.
        """

        async def ask(node_id: int, group: list[TopicPartition]) -> _Outcomes:
            topics = _by_topic(
                group,
                lambda tp: {
                    "partition_index": tp.partition,
                    "current_leader_epoch": self._client.view.leader_epoch_of(tp),
                    "timestamp": specs[tp],
                },
            )
            body = {
                "replica_id": -1,
                "isolation_level": int(read_committed),
                "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
                "timeout_ms": self._timeout_ms,
            }
            answer = await self._client.request_node(node_id, LIST_OFFSETS, body)
            return _sort(
                (TopicPartition(topic.name, row.partition_index), row, None, ListedOffset(row.offset, row.timestamp, row.leader_epoch))
                for topic in answer.topics
                for row in topic.partitions
            )

        return await self._each_partition("listing offsets", list(specs), ask)

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | ClientError]:
        """Delete each partition's records before an offset (END_OF_LOG: all); returns the new first offsets."""

        async def ask(node_id: int, group: list[TopicPartition]) -> _Outcomes:
            topics = _by_topic(group, lambda tp: {"partition_index": tp.partition, "offset": before[tp]})
            body = {
                "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
                "timeout_ms": self._timeout_ms,
            }
            answer = await self._client.request_node(node_id, DELETE_RECORDS, body)
            return _sort(
                (TopicPartition(topic.name, row.partition_index), row, None, row.low_watermark)
                for topic in answer.topics
                for row in topic.partitions
            )

        return await self._each_partition("deleting records", list(before), ask)

    async def describe_producers(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, list[ActiveProducer] | ClientError]:
        """The idempotent and transactional producers that each partition's leader remembers."""

        async def ask(node_id: int, group: list[TopicPartition]) -> _Outcomes:
            topics: dict[str, list[int]] = {}
            for tp in group:
                topics.setdefault(tp.topic, []).append(tp.partition)
            body = {"topics": [{"name": name, "partition_indexes": indexes} for name, indexes in topics.items()]}
            answer = await self._client.request_node(node_id, DESCRIBE_PRODUCERS, body)
            return _sort(
                (TopicPartition(topic.name, row.partition_index), row, row.error_message, _active_producers(row))
                for topic in answer.topics
                for row in topic.partitions
            )

        return await self._each_partition("describing producers", list(partitions), ask)

    # -- nodes

    async def describe_cluster(self) -> ClusterDescription:
        """The nodes and the controller; fenced nodes too where the broker tells of them."""

        async def attempt() -> ClusterDescription:
            answer = await self._client.request_any(DESCRIBE_CLUSTER, {"include_fenced_brokers": True})
            if answer.error_code:
                raise error_from_wire(answer.error_code, "describing the cluster", answer.error_message)
            brokers = sorted(
                (BrokerInfo(row.broker_id, row.host, row.port, row.rack) for row in answer.brokers), key=lambda each: each.node_id
            )
            fenced = frozenset(row.broker_id for row in answer.brokers if row.is_fenced)
            return ClusterDescription(answer.cluster_id, answer.controller_id, tuple(brokers), fenced)

        return await self._retry("describing the cluster", attempt)

    async def describe_log_dirs(self, node_ids: Iterable[int] | None = None) -> dict[int, list[LogDirectory] | ClientError]:
        """The log directories of the given nodes (all by default) and what lies in them."""
        if node_ids is None:
            node_ids = sorted((await self._client.refresh([])).brokers)

        async def attempt(left: list[int]) -> _Outcomes:
            outcomes = _Outcomes({}, {})
            for node_id in left:
                try:
                    answer = await self._client.request_node(node_id, DESCRIBE_LOG_DIRS, {"topics": None})
                except ClientError as error:
                    (outcomes.again if error.retriable else outcomes.done)[node_id] = error
                    continue
                if answer.error_code:
                    outcomes.done[node_id] = error_from_wire(answer.error_code, f"log directories of node {node_id}")
                else:
                    outcomes.done[node_id] = [_log_directory(row) for row in answer.results]
            return outcomes

        return await self._each("describing log directories", list(node_ids), attempt)

    # -- how calls are made

    @property
    def _timeout_ms(self) -> int:
        return int(self._timeout_s * 1000)

    async def _retry(self, what: str, attempt: Callable[[], Awaitable[ItemT]]) -> ItemT:
        return await self._client.retry(what, attempt, deadline=trio.current_time() + self._timeout_s)

    async def _request(self, node_id: int | None, key: int, body: Mapping[str, Any]) -> Any:
        if node_id is None:
            return await self._client.request_controller(key, body)
        return await self._client.request_node(node_id, key, body)

    async def _each(
        self, what: str, keys: list[KeyT], attempt: Callable[[list[KeyT]], Awaitable[_Outcomes]], *, repeated: ErrorCode | None = None
    ) -> dict[KeyT, Any]:
        """Results for all keys: attempts over those that are left, until none is or the time is up.

        `repeated` is the code by which a change that was made by a lost attempt answers a second one.
        """
        results: dict[KeyT, Any] = {}
        left = list(dict.fromkeys(keys))
        doubtful = False

        async def once() -> None:
            nonlocal left, doubtful
            asked = left
            try:
                outcomes = await attempt(asked)
            except MqError as error:
                doubtful |= error.code in (ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT)
                raise
            for key in asked:
                outcome = outcomes.done.get(key)
                if isinstance(outcome, ClientError) and doubtful and outcome.code is repeated:
                    message = f"{outcome.message} (an earlier attempt of this call got no answer and may have done it)"
                    outcome = ClientError(outcome.code, message, remedy=outcome.remedy)
                if key in outcomes.done:
                    results[key] = outcome
                elif key in outcomes.again:
                    results[key] = outcomes.again[key]
                else:
                    results[key] = ClientError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{what}: the broker's answer leaves out {key}")
            left = [key for key in asked if key in outcomes.again]
            if left:
                raise outcomes.again[left[0]]

        if left:
            try:
                await self._retry(what, once)
            except DeadlineExceeded as error:
                if not any(key in results for key in keys):
                    raise
                for key in left:
                    results[key] = DeadlineExceeded(error.message, results.get(key))
        return {key: results[key] for key in keys}

    async def _each_partition(
        self,
        what: str,
        partitions: list[TopicPartition],
        ask: Callable[[int, list[TopicPartition]], Awaitable[_Outcomes]],
    ) -> dict[TopicPartition, Any]:
        """Results for all partitions, each asked of its leader; the nodes are asked at the same time."""

        async def attempt(left: list[TopicPartition]) -> _Outcomes:
            view = await self._client.refresh({tp.topic for tp in left})
            outcomes = _Outcomes({}, {})
            groups: dict[int, list[TopicPartition]] = {}
            for tp in left:
                leader = view.leader_of(tp)
                if leader is not None:
                    groups.setdefault(leader.node_id, []).append(tp)
                elif view.partition(tp) is None:
                    outcomes.done[tp] = error_from_wire(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {tp}", "it does not exist")
                else:
                    outcomes.again[tp] = error_from_wire(ErrorCode.LEADER_NOT_AVAILABLE, f"partition {tp}")

            async def one(node_id: int, group: list[TopicPartition]) -> None:
                try:
                    found = await ask(node_id, group)
                except ClientError as error:
                    (outcomes.again if error.retriable else outcomes.done).update(dict.fromkeys(group, error))
                else:
                    outcomes.done.update(found.done)
                    outcomes.again.update(found.again)

            async with trio.open_nursery() as nursery:
                for node_id, group in groups.items():
                    nursery.start_soon(one, node_id, group)
            return outcomes

        return await self._each(what, partitions, attempt)


_MISSING = {int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION): "it does not exist"}

_FINAL = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.THROTTLING_QUOTA_EXCEEDED})
"""Retriable in general, but an answer to a question about a thing that does not exist is an answer."""


def _sort(rows: Iterable[tuple[Any, Any, str | None, Any]]) -> _Outcomes:
    """Rows of (key, row with an error code, message, result) into what is done and what is worth another attempt."""
    outcomes = _Outcomes({}, {})
    for key, row, message, result in rows:
        if not row.error_code:
            outcomes.done[key] = result
            continue
        name = f"{key.type.name.lower()} {key.name!r}" if isinstance(key, Resource) else str(key)
        error = error_from_wire(row.error_code, name, message or _MISSING.get(row.error_code))
        again = error.retriable and error.code not in _FINAL
        (outcomes.again if again else outcomes.done)[key] = error
    return outcomes


def _raised(outcome: ItemT | ClientError) -> ItemT:
    if isinstance(outcome, ClientError):
        raise outcome
    return outcome


def _new_topic(topic: NewTopic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "num_partitions": -1 if topic.assignments else topic.partitions,
        "replication_factor": -1 if topic.assignments else topic.replication_factor,
        "assignments": [{"partition_index": index, "broker_ids": list(nodes)} for index, nodes in sorted(topic.assignments.items())],
        "configs": [{"name": name, "value": value} for name, value in topic.configs.items()],
    }


def _by_node(resources: Iterable[Resource]) -> dict[int | None, list[Resource]]:
    """Which node to ask: a node for its own configuration, None (the controller) for all else."""
    groups: dict[int | None, list[Resource]] = {}
    for each in resources:
        own = each.type in (ResourceType.BROKER, ResourceType.BROKER_LOGGER) and each.name.isdigit()
        groups.setdefault(int(each.name) if own else None, []).append(each)
    return groups


def _by_topic(partitions: Iterable[TopicPartition], row: Callable[[TopicPartition], dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for tp in partitions:
        topics.setdefault(tp.topic, []).append(row(tp))
    return topics


def _resource(row: Any) -> Resource:
    return Resource(ResourceType(row.resource_type), row.resource_name)


def _config_entries(row: Any) -> list[ConfigEntry]:
    entries = []
    for each in row.configs:
        known = each.config_source in ConfigSource._value2member_map_
        source = ConfigSource(each.config_source) if known else ConfigSource.UNKNOWN
        entries.append(ConfigEntry(each.name, each.value, source, each.read_only, each.is_sensitive, each.documentation or None))
    return sorted(entries, key=lambda entry: entry.name)


def _active_producers(row: Any) -> list[ActiveProducer]:
    return [
        ActiveProducer(
            each.producer_id,
            each.producer_epoch,
            each.last_sequence,
            each.last_timestamp,
            each.coordinator_epoch,
            each.current_txn_start_offset,
        )
        for each in row.active_producers
    ]


def _log_directory(row: Any) -> LogDirectory:
    replicas = tuple(
        ReplicaOnDisk(TopicPartition(topic.name, each.partition_index), each.partition_size, each.offset_lag, each.is_future_key)
        for topic in row.topics
        for each in topic.partitions
    )
    error = error_from_wire(row.error_code, row.log_dir) if row.error_code else None
    return LogDirectory(row.log_dir, replicas, row.total_bytes, row.usable_bytes, error)
