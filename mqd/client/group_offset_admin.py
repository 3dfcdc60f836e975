"""Administration of committed offsets and of the lag of groups; offsets of logs.

`Admin` has these calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from mqd.client.arguments import check_flag, check_ids, check_string
from mqd.client.calls import Outcomes, by_topic, outcomes_of, raised
from mqd.client.cluster import api
from mqd.client.coordinator import KeyType
from mqd.client.descriptions import EARLIEST, LATEST, ListedOffset, Place
from mqd.client.errors import ClientError, error_from_wire
from mqd.client.group_admin import GroupAdmin
from mqd.client.group_descriptions import GroupDescription, GroupMember, PartitionLag
from mqd.client.group_member import GroupMetadata
from mqd.client.offsets import (
    NAMES_UP_TO,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    SEVERAL_GROUPS_SINCE,
    CommittedOffset,
    FetchedOffset,
    Offsets,
    check_offsets,
    commit_body,
    fetch_several_body,
    fetched_rows,
)
from mqd.client.peer import PeerConnection
from mqd.client.resource_arguments import as_timestamps, check_partitions
from mqd.errors import ErrorCode
from mqd.protocol.apis.offset_fetch import LAG_TO_HIGH_WATERMARK, LAG_TO_LAST_STABLE_OFFSET
from mqd.types import TopicPartition

LIST_OFFSETS, OFFSET_DELETE = 2, 47

_GROUPS_AT_ONCE = 500
"""The number of groups in one OffsetFetch request."""


class _Fetched(NamedTuple):
    """The rows of a group, the errors of partitions, and whether the coordinator returned
    the log end offsets.
    """

    rows: dict[TopicPartition, FetchedOffset]
    errors: list[ClientError]
    has_log_ends: bool


class GroupOffsetAdmin(GroupAdmin):
    """Calls about offsets, and about the lag of groups."""

    async def list_group_offsets(
        self, group_ids: Iterable[str], *, stable: bool = False
    ) -> dict[str, dict[TopicPartition, CommittedOffset] | ClientError]:
        """All committed offsets of each group; empty for a group that does not exist.
        `stable` waits for open transactions."""

        check_flag("stable", stable)
        wanted = check_ids("group_ids", group_ids, "billing")
        found = await self._fetch_offsets(wanted, stable=stable)
        listed: dict[str, dict[TopicPartition, CommittedOffset] | ClientError] = {}
        for name, outcome in found.items():
            if isinstance(outcome, ClientError) or outcome.errors:
                listed[name] = outcome if isinstance(outcome, ClientError) else outcome.errors[0]
            else:
                listed[name] = {
                    tp: row.committed
                    for tp, row in sorted(outcome.rows.items())
                    if row.committed is not None
                }
        return listed

    async def alter_group_offsets(
        self, group_id: str, offsets: Offsets
    ) -> dict[TopicPartition, ClientError | None]:
        """Reset a group's committed offsets.

        The group must have no members, else UNKNOWN_MEMBER_ID.
        """
        check_string("group_id", group_id, "billing")
        check_offsets("offsets", offsets)

        async def request(connection: PeerConnection, left: list[TopicPartition]) -> Outcomes:
            body = commit_body(GroupMetadata(group_id), {tp: offsets[tp] for tp in left})
            response = await self._client.request(
                connection, OFFSET_COMMIT, body, at_most=NAMES_UP_TO
            )
            return _partition_outcomes(response)

        return await self._of_one_group(
            f"setting offsets of group {group_id!r}", group_id, list(offsets), request
        )

    async def delete_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ClientError | None]:
        """Delete committed offsets. GROUP_SUBSCRIBED_TO_TOPIC for topics to which members are
        subscribed."""
        check_string("group_id", group_id, "billing")
        wanted = check_partitions("partitions", partitions)

        async def request(connection: PeerConnection, left: list[TopicPartition]) -> Outcomes:
            topics = by_topic(left, lambda tp: {"partition_index": tp.partition})
            body = {
                "group_id": group_id,
                "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
            }
            response = await self._client.request(connection, OFFSET_DELETE, body)
            if response.error_code:
                raise error_from_wire(response.error_code, f"group {group_id!r}")
            return _partition_outcomes(response)

        return await self._of_one_group(
            f"deleting offsets of group {group_id!r}", group_id, wanted, request
        )

    async def group_lag(self, group_id: str, *, read_committed: bool = False) -> list[PartitionLag]:
        """The lag in each partition that is assigned, or has a committed offset. Raises
        ClientError; GROUP_ID_NOT_FOUND if the coordinator has no trace of the group.
        """
        check_string("group_id", group_id, "billing")
        return raised((await self.group_lags([group_id], read_committed=read_committed))[group_id])

    async def group_lags(
        self, group_ids: Iterable[str], *, read_committed: bool = False
    ) -> dict[str, list[PartitionLag] | ClientError]:
        """The same for many groups at once, which costs little more than one.

        Coordinators of mqd return the lag themselves. For those of Apache Kafka the leaders are
        queried. A partition is listed without an end offset if its leader does not respond.
        """
        check_flag("read_committed", read_committed)
        described = await self.describe_groups(group_ids)
        names = list(described)
        lags: dict[str, list[PartitionLag] | ClientError] = {}
        owners: dict[str, dict[TopicPartition, GroupMember]] = {}
        shared: list[str] = []
        for name, outcome in described.items():
            if isinstance(outcome, GroupDescription) and outcome.type == "share":
                shared.append(name)
            elif not isinstance(outcome, ClientError):
                owners[name] = {
                    tp: member for member in outcome.members for tp in member.assignment
                }
            elif outcome.code is ErrorCode.GROUP_ID_NOT_FOUND:
                owners[name] = {}
            else:
                lags[name] = outcome
        wanted = LAG_TO_LAST_STABLE_OFFSET if read_committed else LAG_TO_HIGH_WATERMARK
        fetched = await self._fetch_offsets(list(owners), lag_wanted=wanted)
        kept = dict(_kept(fetched))
        lacking = {name: set(owners[name]) - each.rows.keys() for name, each in kept.items()}
        others = await self._fetch_offsets(
            [name for name in lacking if lacking[name]], lacking, lag_wanted=wanted
        )
        fetched |= {name: other for name, other in others.items() if isinstance(other, ClientError)}
        for name, other in _kept(others):
            fetched[name] = _Fetched({**other.rows, **kept[name].rows}, [], other.has_log_ends)
        await self._add_bounds_of_leaders(
            [each.rows for _, each in _kept(fetched) if not each.has_log_ends],
            read_committed=read_committed,
        )
        lags |= {
            name: refused for name, refused in fetched.items() if isinstance(refused, ClientError)
        }
        for name, (rows, _, _) in _kept(fetched):
            missing = described[name]
            lags[name] = [PartitionLag(tp, *rows[tp], owners[name].get(tp)) for tp in sorted(rows)]
            if not rows and isinstance(missing, ClientError):
                lags[name] = missing
        lags |= await self._share_group_lags(shared, read_committed=read_committed)
        return {name: lags[name] for name in names}

    async def _share_group_lags(
        self, names: list[str], *, read_committed: bool
    ) -> dict[str, list[PartitionLag] | ClientError]:
        if not names:
            return {}
        found = await self.list_share_group_offsets(names)
        rows = {
            name: {
                tp: FetchedOffset(
                    None if one.start_offset is None else CommittedOffset(one.start_offset),
                    None,
                    None,
                )
                for tp, one in offsets.items()
            }
            for name, offsets in found.items()
            if not isinstance(offsets, ClientError)
        }
        await self._add_bounds_of_leaders(list(rows.values()), read_committed=read_committed)
        return {
            name: offsets
            if isinstance(offsets, ClientError)
            else [
                PartitionLag(tp, *rows[name][tp], None, one.lag, one.expired, one.given_up)
                for tp, one in sorted(offsets.items())
            ]
            for name, offsets in found.items()
        }

    async def _fetch_offsets(
        self,
        names: Iterable[str],
        partitions: Mapping[str, Iterable[TopicPartition]] | None = None,
        *,
        stable: bool = False,
        lag_wanted: int = 0,
    ) -> dict[str, _Fetched | ClientError]:
        """The committed offsets of each group in these partitions, or in all if none are named.

        With `stable`, retried while a transaction may still change them.
        """

        async def request(connection: PeerConnection, keys: list[str]) -> Outcomes:
            outcomes = Outcomes({}, {})
            several = (
                connection.version_of(api(OFFSET_FETCH), at_most=NAMES_UP_TO)
                >= SEVERAL_GROUPS_SINCE
            )
            step = _GROUPS_AT_ONCE if several else 1
            for first in range(0, len(keys), step):
                some = keys[first : first + step]
                body = fetch_several_body(
                    some, partitions or {}, stable=stable, lag_wanted=lag_wanted
                )
                response = await self._client.request(
                    connection, OFFSET_FETCH, body | body["groups"][0], at_most=NAMES_UP_TO
                )
                for name, group in zip(
                    some, response.groups if several else [response], strict=True
                ):
                    if group.error_code:
                        self._note(
                            [name], error_from_wire(group.error_code, f"group {name!r}"), outcomes
                        )
                        continue
                    has_log_ends = several and response.has_log_ends
                    rows = fetched_rows(group, has_log_ends=has_log_ends)
                    errors = [each for each in rows.values() if isinstance(each, ClientError)]
                    unstable = next(
                        (each for each in errors if each.code is ErrorCode.UNSTABLE_OFFSET_COMMIT),
                        None,
                    )
                    if unstable is not None:
                        outcomes.to_retry[name] = unstable
                        continue
                    outcomes.done[name] = _Fetched(
                        {tp: row for tp, row in rows.items() if not isinstance(row, ClientError)},
                        errors,
                        has_log_ends,
                    )
            return outcomes

        return await self._each_coordinated(
            "listing offsets of groups", names, KeyType.GROUP, request
        )

    async def _add_bounds_of_leaders(
        self, groups: list[dict[TopicPartition, FetchedOffset]], *, read_committed: bool
    ) -> None:
        """Add the log start and end offsets, which coordinators of Apache Kafka do not return."""
        partitions = sorted({tp for rows in groups for tp in rows})
        starts = await self._bounds(partitions, EARLIEST, read_committed=False)
        ends = await self._bounds(partitions, LATEST, read_committed=read_committed)
        for rows in groups:
            for tp, row in rows.items():
                rows[tp] = row._replace(start=starts.get(tp), end=ends.get(tp))

    async def _bounds(
        self, partitions: list[TopicPartition], spec: int, *, read_committed: bool
    ) -> dict[TopicPartition, int]:
        """The start or end offset of each log, if its leader returns it."""
        if not partitions:
            return {}
        try:
            found = await self.list_offsets(
                dict.fromkeys(partitions, spec), read_committed=read_committed
            )
        except ClientError as error:
            if not error.retriable:
                raise
            return {}
        return {
            tp: outcome.offset
            for tp, outcome in found.items()
            if not isinstance(outcome, ClientError)
        }

    async def list_offsets(
        self, specs: Mapping[TopicPartition, int | Place], *, read_committed: bool = False
    ) -> dict[TopicPartition, ListedOffset | ClientError]:
        """For each partition the first offset at or after a timestamp in ms; or of "beginning",
        "end", EARLIEST, LATEST, MAX_TIMESTAMP ...

        A timestamp after the last record gives offset -1.
        """
        timestamps = as_timestamps("specs", specs)
        check_flag("read_committed", read_committed)

        async def request(node_id: int, group: list[TopicPartition]) -> Outcomes:
            topics = by_topic(
                group,
                lambda tp: {
                    "partition_index": tp.partition,
                    "current_leader_epoch": self._client.view.leader_epoch_of(tp),
                    "timestamp": timestamps[tp],
                },
            )
            body = {
                "replica_id": -1,
                "isolation_level": int(read_committed),
                "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
                "timeout_ms": self._timeout_ms,
            }
            response = await self._client.request_leader(node_id, LIST_OFFSETS, body)
            return outcomes_of(
                (
                    TopicPartition(topic.name, row.partition_index),
                    row,
                    None,
                    ListedOffset(row.offset, row.timestamp, row.leader_epoch),
                )
                for topic in response.topics
                for row in topic.partitions
            )

        return await self._each_partition("listing offsets", list(timestamps), request)


def _kept(fetched: Mapping[str, _Fetched | ClientError]) -> list[tuple[str, _Fetched]]:
    return [
        (name, outcome) for name, outcome in fetched.items() if not isinstance(outcome, ClientError)
    ]


def _partition_outcomes(response: Any) -> Outcomes:
    return outcomes_of(
        (TopicPartition(topic.name, row.partition_index), row, None, None)
        for topic in response.topics
        for row in topic.partitions
    )
