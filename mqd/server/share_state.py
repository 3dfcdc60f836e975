"""The share coordinators of the cluster, for parts of this node that read and write the state of
share partitions (KIP-932). An operation goes to the coordinator on this node, or as a request to
the node that has it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from uuid import UUID

import trio

from mqd.coordinator.results import COMMIT_SECONDS
from mqd.coordinator.service import CoordinatorService
from mqd.coordinator.share.operations import (
    DeleteState,
    InitializeState,
    ReadState,
    ReadSummary,
    WriteState,
)
from mqd.coordinator.share.records import batch_row, batches_of
from mqd.errors import ErrorCode, MqError
from mqd.server.forward import Forwarder
from mqd.share.ports import ShareKey, StoredState
from mqd.share.record_states import Batch
from mqd.types import NO_NODE, NO_OFFSET, SHARE_STATE_TOPIC, NodeId, Offset, TopicPartition

RETRY_SECONDS_MAX: Final = 5.0
"""For so long, an operation is repeated while its coordinator cannot be reached or is loading."""
_PAUSE_SECONDS: Final = 0.05
REQUEST_SECONDS_MAX: Final = COMMIT_SECONDS + 1.0
"""The timeout of a request to another node: its commit may take COMMIT_SECONDS. Nothing else ends
the wait for a node that has lost power."""
PASSING: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
_COUNT_MAX: Final = 2**31 - 1
_VERSIONS: Final = {
    "initialize_share_group_state": 0,
    "read_share_group_state": 0,
    "write_share_group_state": 1,
    "delete_share_group_state": 0,
    "read_share_group_state_summary": 1,
}


def coordinator_key(key: ShareKey) -> str:
    """Kafka's key of a share partition, in FindCoordinator and for its place in the topic."""
    topic_id = base64.urlsafe_b64encode(key.topic_id.bytes).decode().rstrip("=")
    return f"{key.group_id}:{topic_id}:{key.partition}"


def parse_coordinator_key(text: str) -> ShareKey | None:
    """The reverse of `coordinator_key`; None if the text is not such a key."""
    rest, _, partition = text.rpartition(":")
    group_id, _, topic = rest.rpartition(":")  # a group id may have colons
    try:
        topic_id = UUID(bytes=base64.urlsafe_b64decode(topic + "=="))
        return ShareKey(group_id, topic_id, int(partition)) if group_id else None
    except ValueError:
        return None


class ShareStatePersister:
    """Implements mqd.share.ports.Persister, and creates and deletes states."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        shares: CoordinatorService,
        forward: Forwarder,
        leader_of: Callable[[TopicPartition], NodeId | None],
        create_topic: Callable[[str], None],
    ) -> None:
        """`create_topic(name)`: creates the topic of the states soon, if it does not exist."""
        self._node_id = node_id
        self._shares = shares
        self._forward = forward
        self._leader_of = leader_of
        self._create_topic = create_topic

    async def read(self, key: ShareKey, leader_epoch: int) -> StoredState:
        row = await self._done(
            key,
            ReadState(key, leader_epoch),
            "read_share_group_state",
            {"partition": key.partition, "leader_epoch": leader_epoch},
        )
        batches = row["batches"] if "batches" in row else batches_of(row["state_batches"])
        return StoredState(row["state_epoch"], row["start_offset"], tuple(batches))

    async def write(
        self,
        key: ShareKey,
        *,
        state_epoch: int,
        leader_epoch: int,
        start_offset: Offset,
        done_after_start: int,
        batches: Iterable[Batch],
    ) -> None:
        of_write = tuple(batches)
        done_after_start = min(done_after_start, _COUNT_MAX)
        await self._done(
            key,
            WriteState(key, state_epoch, leader_epoch, start_offset, done_after_start, of_write),
            "write_share_group_state",
            {
                "partition": key.partition,
                "state_epoch": state_epoch,
                "leader_epoch": leader_epoch,
                "start_offset": start_offset,
                "delivery_complete_count": done_after_start,
                "state_batches": [batch_row(one) for one in of_write],
            },
        )

    async def initialize(
        self, key: ShareKey, *, state_epoch: int, start_offset: Offset = NO_OFFSET
    ) -> None:
        """Create the state of a share partition. With an unknown start offset, a state that exists
        stays."""
        try:
            await self._done(
                key,
                InitializeState(key, state_epoch, start_offset),
                "initialize_share_group_state",
                {
                    "partition": key.partition,
                    "state_epoch": state_epoch,
                    "start_offset": start_offset,
                },
            )
        except MqError as error:
            if error.code is not ErrorCode.FENCED_STATE_EPOCH or start_offset != NO_OFFSET:
                raise

    async def delete(self, key: ShareKey) -> None:
        """Delete the state, if there is one."""
        try:
            await self._done(
                key, DeleteState(key), "delete_share_group_state", {"partition": key.partition}
            )
        except MqError as error:  # the states of deleted topics are deleted anyway
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise

    async def summary(self, key: ShareKey) -> Mapping[str, Any]:
        """`start_offset`, `leader_epoch`, `state_epoch`, `delivery_complete_count`."""
        return await self._done(
            key,
            ReadSummary(key),
            "read_share_group_state_summary",
            {"partition": key.partition, "leader_epoch": -1},
        )

    async def _done(
        self, key: ShareKey, operation: Any, api: str, row: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """The result of the operation. Repeats it while the error may pass."""
        gives_up_at = trio.current_time() + RETRY_SECONDS_MAX
        while True:
            try:
                return await self._tried(key, operation, api, row)
            except MqError as error:
                if error.code not in PASSING or trio.current_time() >= gives_up_at:
                    raise
            await trio.sleep(_PAUSE_SECONDS)

    async def _tried(
        self, key: ShareKey, operation: Any, api: str, row: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        text = coordinator_key(key)
        try:
            index = self._shares.partition_of(text)
        except MqError as error:
            if error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
                self._create_topic(SHARE_STATE_TOPIC)
            raise
        leader = self._leader_of(TopicPartition(SHARE_STATE_TOPIC, index))
        if leader in (None, NO_NODE):
            raise MqError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{SHARE_STATE_TOPIC}-{index} has no leader."
            )
        if leader == self._node_id:
            return await self._shares.call_shard(index, operation)
        assert leader is not None
        request = {
            "group_id": key.group_id,
            "topics": [{"topic_id": key.topic_id, "partitions": [row]}],
        }
        try:
            with trio.fail_after(REQUEST_SECONDS_MAX):
                response = await self._forward(leader, api, _VERSIONS[api], request)
        except OSError as error:
            raise MqError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
        except trio.TooSlowError as error:
            raise MqError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"Node {leader} did not respond to {api} within {REQUEST_SECONDS_MAX:g} s.",
            ) from error
        [topic] = response["results"]
        [result] = topic["partitions"]
        if result["error_code"]:
            raise MqError(ErrorCode(result["error_code"]), result["error_message"] or "")
        found: Mapping[str, Any] = result
        return found
