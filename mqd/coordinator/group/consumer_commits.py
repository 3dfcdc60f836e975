"""Whether a member of a consumer group may commit or fetch offsets with its member epoch."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from mqd.coordinator.group.consumer_member import ConsumerGroupMember
from mqd.coordinator.group.state import CheckPartition
from mqd.errors import ErrorCode, MqError

_FLEXIBLE_COMMIT_VERSION: Final = 9
"""From this version of OffsetCommit on, a generation may be a member epoch."""


def check_commit(
    member: ConsumerGroupMember, generation: int, *, transactional: bool, version: int
) -> CheckPartition | None:
    """Raises MqError STALE_MEMBER_EPOCH, or ILLEGAL_GENERATION for a member of the classic
    protocol.

    An older epoch may commit partitions that the member has owned since then (KIP-1251).
    """
    if not transactional and not member.uses_classic and version < _FLEXIBLE_COMMIT_VERSION:
        raise MqError(
            ErrorCode.UNSUPPORTED_VERSION,
            "OffsetCommit version 9 or above must be used by members using the consumer "
            "group protocol",
        )
    if generation == member.epoch:
        return None
    if generation > member.epoch:
        raise _wrong_epoch(
            member,
            f"Received {_epoch_word(member)} {generation} is newer than current member "
            f"epoch {member.epoch}.",
        )
    return _check_partitions_since(member, generation)


def check_fetch(member: ConsumerGroupMember, generation: int) -> None:
    """Raises MqError STALE_MEMBER_EPOCH or ILLEGAL_GENERATION, as for a commit."""
    if generation != member.epoch:
        raise _wrong_epoch(
            member,
            f"The received {_epoch_word(member)} {generation} does not match the expected "
            f"member epoch {member.epoch}.",
        )


def _epoch_word(member: ConsumerGroupMember) -> str:
    return "generation id" if member.uses_classic else "member epoch"


def _wrong_epoch(member: ConsumerGroupMember, message: str) -> MqError:
    return MqError(
        ErrorCode.ILLEGAL_GENERATION if member.uses_classic else ErrorCode.STALE_MEMBER_EPOCH,
        message,
    )


def _check_partitions_since(member: ConsumerGroupMember, generation: int) -> CheckPartition:
    def check(topic: str, topic_id: UUID, partition: int) -> None:
        since = member.owns(topic_id, partition)
        if since is None:
            raise _wrong_epoch(
                member,
                f"Partition {topic}-{partition} is not assigned or pending revocation for member.",
            )
        if generation < since:
            raise _wrong_epoch(
                member,
                f"Received {_epoch_word(member)} {generation} is older than assignment epoch "
                f"{since} for partition {topic}-{partition}.",
            )

    return check
