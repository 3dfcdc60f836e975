"""Looking at a cluster and changing it: topics, partitions, configurations, offsets, brokers and
their disks, groups, transactions, access.

Calls about several resources return a result or a ClientError for each. They raise only if no
request could be sent. Retriable errors are retried until `timeout_s`. A change whose response was
lost may have been made; the retry then returns an error that explains this.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

from mqd.client.access_admin import AccessAdmin
from mqd.client.arguments import (
    INT32_MAX,
    check_flag,
    check_names,
    check_topic,
    check_topics,
    check_whole,
)
from mqd.client.calls import Outcomes, by_topic, outcomes_of, raised
from mqd.client.cluster_admin import ClusterAdmin
from mqd.client.descriptions import (
    ConfigChange,
    ConfigEntry,
    ConfigSource,
    ConfigValue,
    CreatedTopic,
    NewTopic,
    Resource,
    ResourceType,
)
from mqd.client.errors import ClientError, does_not_exist, error_from_wire
from mqd.client.group_offset_admin import GroupOffsetAdmin
from mqd.client.metadata import TopicInfo
from mqd.client.resource_arguments import (
    as_changes,
    as_configs,
    as_first_offsets,
    check_by_partition,
    check_new_topics,
    check_resources,
    check_totals,
)
from mqd.client.txn_admin import TransactionAdmin
from mqd.errors import ErrorCode
from mqd.types import NO_EPOCH, TopicPartition

CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS = 19, 20, 21
OFFSET_FOR_LEADER_EPOCH, DESCRIBE_CONFIGS, CREATE_PARTITIONS, INCREMENTAL_ALTER_CONFIGS = (
    23,
    32,
    37,
    44,
)

_NOT_DELETABLE = {
    ErrorCode.INVALID_TOPIC_EXCEPTION: (
        "its topic is internal, and holds the state of coordinators",
        "choose another topic",
    ),
    ErrorCode.POLICY_VIOLATION: (
        "the cleanup.policy of its topic lacks 'delete'",
        "choose another topic, or change this one with `mqctl topic config set`",
    ),
}
"""Why DeleteRecords refuses a topic, and what to do."""


class Admin(GroupOffsetAdmin, TransactionAdmin, ClusterAdmin, AccessAdmin):
    """Administration over a ClusterClient. `timeout_s` bounds each call, retries included."""

    # -- topics

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> dict[str, CreatedTopic | ClientError]:
        """Create topics; each name has its result. With `validate_only` nothing is changed."""
        wanted = {topic.name: topic for topic in check_new_topics("topics", topics)}
        check_flag("validate_only", validate_only)

        async def attempt(names: list[str]) -> Outcomes:
            body = {
                "topics": [_new_topic(wanted[name]) for name in names],
                "timeout_ms": self._timeout_ms,
                "validate_only": validate_only,
            }
            response = await self._client.request_controller(CREATE_TOPICS, body)
            return outcomes_of(
                (
                    row.name,
                    row,
                    row.error_message,
                    CreatedTopic(
                        row.name, row.topic_id, row.num_partitions, row.replication_factor
                    ),
                )
                for row in response.topics
            )

        return await self._each(
            "creating topics", list(wanted), attempt, repeated=ErrorCode.TOPIC_ALREADY_EXISTS
        )

    async def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, ConfigValue] | None = None,
    ) -> CreatedTopic:
        """Create one topic; raises the ClientError that the broker returns."""
        configs = {} if configs is None else configs
        results = await self.create_topics(
            [NewTopic(name, partitions, replication_factor, configs)]
        )
        return raised(results[name])

    async def delete_topics(self, names: Iterable[str]) -> dict[str, ClientError | None]:
        """Delete topics with all their records. None for each that is gone."""
        wanted = check_topics("names", names)

        async def attempt(left: list[str]) -> Outcomes:
            body = {
                "topics": [{"name": name} for name in left],
                "topic_names": left,
                "timeout_ms": self._timeout_ms,
            }
            response = await self._client.request_controller(DELETE_TOPICS, body)
            return outcomes_of(
                (row.name, row, row.error_message, None) for row in response.responses
            )

        results: dict[str, ClientError | None] = await self._each(
            "deleting topics", wanted, attempt, repeated=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
        return results

    async def delete_topic(self, name: str) -> None:
        """Delete one topic; raises the ClientError that the broker returns."""
        check_topic(name, "name")
        raised((await self.delete_topics([name]))[name])

    async def add_partitions(
        self, totals: Mapping[str, int], *, validate_only: bool = False
    ) -> dict[str, ClientError | None]:
        """Raise each topic's number of partitions to the given total.

        Keys map to other partitions from then on.
        """
        check_totals("totals", totals)
        check_flag("validate_only", validate_only)

        async def attempt(left: list[str]) -> Outcomes:
            topics = [{"name": name, "count": totals[name], "assignments": None} for name in left]
            body = {
                "topics": topics,
                "timeout_ms": self._timeout_ms,
                "validate_only": validate_only,
            }
            response = await self._client.request_controller(CREATE_PARTITIONS, body)
            return outcomes_of((row.name, row, row.error_message, None) for row in response.results)

        results: dict[str, ClientError | None] = await self._each(
            "adding partitions", list(totals), attempt
        )
        return results

    async def list_topics(self, *, internal: bool = False) -> list[TopicInfo]:
        """All topics by name; `internal` includes the internal topics of the cluster."""
        check_flag("internal", internal)

        async def attempt() -> list[TopicInfo]:
            view = await self._client.refresh(None)
            return sorted(
                (topic for topic in view.topics.values() if internal or not topic.internal),
                key=lambda topic: topic.name,
            )

        return await self._retry("listing topics", attempt)

    async def describe_topics(self, names: Iterable[str]) -> dict[str, TopicInfo | ClientError]:
        """Topics with their partitions, leaders and replicas."""
        wanted = check_topics("names", names)

        async def attempt(left: list[str]) -> Outcomes:
            view = await self._client.refresh(left)
            outcomes = Outcomes({}, {})
            for name in left:
                topic = view.topics.get(name)
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic is None else topic.error_code
                if not code:
                    outcomes.done[name] = topic
                    continue
                error = (
                    does_not_exist(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r}")
                    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    else error_from_wire(code, f"topic {name!r}")
                )
                (
                    outcomes.to_retry
                    if error.code is ErrorCode.LEADER_NOT_AVAILABLE
                    else outcomes.done
                )[name] = error
            return outcomes

        return await self._each("describing topics", wanted, attempt)

    # -- configurations

    async def describe_configs(
        self,
        resources: Iterable[Resource],
        keys: Collection[str] | None = None,
        *,
        documentation: bool = False,
    ) -> dict[Resource, list[ConfigEntry] | ClientError]:
        """The effective configuration of each resource, all keys or those named, sorted by name."""
        wanted = check_resources("resources", resources)
        named = None if keys is None else list(check_names("keys", keys, "retention.ms"))
        check_flag("documentation", documentation)

        async def request(node_id: int | None, group: list[Resource]) -> Outcomes:
            body = {
                "resources": [
                    {
                        "resource_type": each.type,
                        "resource_name": each.name,
                        "configuration_keys": named,
                    }
                    for each in group
                ],
                "include_documentation": documentation,
            }
            response = await self._request(node_id, DESCRIBE_CONFIGS, body)
            return outcomes_of(
                (_resource(row), row, row.error_message, _config_entries(row))
                for row in response.results
            )

        async def attempt(left: list[Resource]) -> Outcomes:
            outcomes = Outcomes({}, {})
            await self._request_all(_by_node(left), request, outcomes)
            return outcomes

        return await self._each("describing configurations", wanted, attempt)

    async def alter_configs(
        self, changes: Mapping[Resource, Sequence[ConfigChange]], *, validate_only: bool = False
    ) -> dict[Resource, ClientError | None]:
        """Change keys one by one and leave all others (KIP-339).

        All changes of a resource are made, or none.
        """
        wanted = as_changes("changes", changes)
        check_flag("validate_only", validate_only)

        async def request(node_id: int | None, group: list[Resource]) -> Outcomes:
            rows = [
                {
                    "resource_type": each.type,
                    "resource_name": each.name,
                    "configs": wanted[each],
                }
                for each in group
            ]
            response = await self._request(
                node_id,
                INCREMENTAL_ALTER_CONFIGS,
                {"resources": rows, "validate_only": validate_only},
            )
            return outcomes_of(
                (_resource(row), row, row.error_message, None) for row in response.responses
            )

        async def attempt(left: list[Resource]) -> Outcomes:
            outcomes = Outcomes({}, {})
            await self._request_all(_by_node(left), request, outcomes)
            return outcomes

        results: dict[Resource, ClientError | None] = await self._each(
            "altering configurations", list(wanted), attempt
        )
        return results

    # -- partitions

    async def delete_records(
        self, before: Mapping[TopicPartition, int | Literal["end", "latest"]]
    ) -> dict[TopicPartition, int | ClientError]:
        """Delete each partition's records before an offset ("end": all); returns the new first
        offsets.
        """
        offsets = as_first_offsets("before", before)

        async def request(node_id: int, group: list[TopicPartition]) -> Outcomes:
            topics = by_topic(
                group, lambda tp: {"partition_index": tp.partition, "offset": offsets[tp]}
            )
            body = {
                "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
                "timeout_ms": self._timeout_ms,
            }
            response = await self._client.request_leader(node_id, DELETE_RECORDS, body)
            outcomes = outcomes_of(
                (TopicPartition(topic.name, row.partition_index), row, None, row.low_watermark)
                for topic in response.topics
                for row in topic.partitions
            )
            for tp, outcome in outcomes.done.items():
                if isinstance(outcome, ClientError) and outcome.code in _NOT_DELETABLE:
                    message, remedy = _NOT_DELETABLE[outcome.code]
                    message = f"records of {tp} cannot be deleted: {message}"
                    outcomes.done[tp] = ClientError(outcome.code, message, remedy=remedy)
            return outcomes

        return await self._each_partition("deleting records", list(offsets), request)

    async def list_epoch_ends(
        self, epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | ClientError]:
        """The end offset of a leader epoch in the leader's log, for each partition; -1 if unknown
        (KIP-320). An offset that was read in that epoch and is beyond its end has been truncated.
        """
        check_by_partition("epochs", epochs, "7")
        for tp, epoch in epochs.items():
            check_whole(f"the leader epoch of {tp}", epoch, NO_EPOCH, INT32_MAX)

        async def request(node_id: int, group: list[TopicPartition]) -> Outcomes:
            topics = by_topic(
                group,
                lambda tp: {
                    "partition": tp.partition,
                    "current_leader_epoch": NO_EPOCH,
                    "leader_epoch": epochs[tp],
                },
            )
            body = {
                "replica_id": -1,
                "topics": [{"topic": name, "partitions": rows} for name, rows in topics.items()],
            }
            response = await self._client.request_leader(node_id, OFFSET_FOR_LEADER_EPOCH, body)
            return outcomes_of(
                (TopicPartition(topic.topic, row.partition), row, None, row.end_offset)
                for topic in response.topics
                for row in topic.partitions
            )

        return await self._each_partition("listing ends of leader epochs", list(epochs), request)


def _new_topic(topic: NewTopic) -> dict[str, Any]:
    configs = as_configs(topic.configs)
    return {
        "name": topic.name,
        "num_partitions": -1 if topic.assignments else topic.partitions,
        "replication_factor": -1 if topic.assignments else topic.replication_factor,
        "assignments": [
            {"partition_index": index, "broker_ids": list(brokers)}
            for index, brokers in sorted(topic.assignments.items())
        ],
        "configs": [{"name": name, "value": value} for name, value in configs.items()],
    }


def _by_node(resources: Iterable[Resource]) -> dict[int | None, list[Resource]]:
    """The broker of a resource: its own id for a broker, None (the controller) for all else."""
    groups: dict[int | None, list[Resource]] = {}
    for each in resources:
        own = each.type in (ResourceType.BROKER, ResourceType.BROKER_LOGGER) and each.name.isdigit()
        groups.setdefault(int(each.name) if own else None, []).append(each)
    return groups


def _resource(row: Any) -> Resource:
    return Resource(ResourceType(row.resource_type), row.resource_name)


def _config_entries(row: Any) -> list[ConfigEntry]:
    entries = []
    for each in row.configs:
        known = each.config_source in ConfigSource._value2member_map_
        source = ConfigSource(each.config_source) if known else ConfigSource.UNKNOWN
        entries.append(
            ConfigEntry(
                each.name,
                each.value,
                source,
                each.read_only,
                each.is_sensitive,
                each.documentation or None,
            )
        )
    return sorted(entries, key=lambda entry: entry.name)
