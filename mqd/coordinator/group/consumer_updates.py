"""First step of a heartbeat: write what it changes of its member, and the new group epoch.

The group epoch grows when a subscription changes, or a topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mqd.coordinator.group import records
from mqd.coordinator.group.assignment import Partitions
from mqd.coordinator.group.consumer_group import ASSIGNED_PARTITION_BYTES, ConsumerGroup
from mqd.coordinator.group.consumer_member import ConsumerGroupMember
from mqd.coordinator.group.consumer_subscriptions import MATCHED_TOPIC_BYTES
from mqd.coordinator.group.consumer_timers import ConsumerTimers
from mqd.coordinator.group.part import Draft
from mqd.coordinator.group.state import State
from mqd.coordinator.group.subscriptions import Resolution, compile_expression, topics_hash
from mqd.coordinator.shard import Moment
from mqd.errors import ErrorCode, MqError
from mqd.limits import CONSUMER_GROUP_BYTES_MAX, SUBSCRIBED_NAMES_MAX

_REFRESH_MS_MIN: Final = 10_000
_REFRESH_MS_MAX: Final = 600_000
"""Expressions are matched again after the first time at the earliest, and after the second at the
latest."""


@dataclass(frozen=True, slots=True)
class MemberChange:
    """The changes of a member by its request."""

    member: ConsumerGroupMember
    """The member now, or a new one."""
    updated: ConsumerGroupMember
    """The member with the fields of the request."""
    reported: Partitions | None
    """The partitions that the member reports as its own; None if it does not report them."""
    replaces: str | None = None
    """The former id of a static member that got another id."""


@dataclass(slots=True)
class GroupUpdate:
    """The group after the first step."""

    epoch: int
    subscription_changed: bool
    resolved: dict[str, frozenset[str]]
    """The topics of each expression."""


class MemberUpdates:
    """The first step, for the consumer groups of a shard."""

    def __init__(self, state: State, timers: ConsumerTimers) -> None:
        self.state = state
        self._timers = timers
        self.names_version = state.topics.version
        """The last version of the metadata with a new topic."""

    def update(
        self, group: ConsumerGroup, change: MemberChange, draft: Draft, now: Moment
    ) -> GroupUpdate:
        """Write the member, and a new group epoch if its subscription or a topic has changed."""
        member, updated = change.member, change.updated
        names_changed = updated.topic_names != member.topic_names
        regex_changed = updated.topic_regex != member.topic_regex
        if (
            regex_changed
            and updated.topic_regex
            and not group.subscriptions.regexes[updated.topic_regex]
        ):
            compile_expression(updated.topic_regex)
        if updated != member:
            draft.write(
                records.MemberMetadataKey(group.group_id, updated.member_id), updated.metadata()
            )
            size = len(draft.records[-1].value or b"")
            if size > self.state.record_bytes_max():
                raise MqError(
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                    f"The metadata of the member takes {size} bytes, more than "
                    f"{self.state.record_bytes_max()} (message.max.bytes).",
                )
            if names_changed and len(updated.topic_names) > SUBSCRIBED_NAMES_MAX:
                raise MqError(
                    ErrorCode.INVALID_REQUEST,
                    f"A member subscribes to at most {SUBSCRIBED_NAMES_MAX} topics by their names.",
                )
            growth = updated.size - (member.size if updated.member_id in group.members else 0)
            if growth > 0:
                if group.memory + growth > CONSUMER_GROUP_BYTES_MAX:
                    raise MqError(
                        ErrorCode.GROUP_MAX_SIZE_REACHED,
                        f"The metadata of the members of {group.group_id!r} take too much memory.",
                    )
                self.state.make_room(group.group_id, growth, now)
        resolved, topics_changed = self._update_expressions(group, change, draft, now)
        bump = names_changed or topics_changed
        if regex_changed and (not updated.topic_regex or updated.topic_regex in resolved):
            bump = True
        epoch = group.epoch
        if bump or group.subscriptions.checked_version != self.state.topics.version:
            present = group.members.get(change.replaces or member.member_id)
            names = group.subscriptions.subscribed_names(
                self.state.topics.names(), [present] if present is not None else [], updated
            )
            metadata_hash = topics_hash(self.state.topics, {*names, *topics_of(resolved, resolved)})
            changed = bump or metadata_hash != group.metadata_hash
            if changed and self._has_room_to_assign(
                group, names, resolved, by_member=bump, now=now
            ):
                epoch += 1
                draft.write(
                    records.ConsumerGroupMetadataKey(group.group_id),
                    records.ConsumerGroupMetadata(epoch, metadata_hash),
                )
            elif not changed:
                group.subscriptions.checked_version = self.state.topics.version
            if group.has_partition_metadata:
                draft.delete(records.PartitionMetadataKey(group.group_id))
        return GroupUpdate(epoch, names_changed or regex_changed, resolved)

    def _has_room_to_assign(
        self,
        group: ConsumerGroup,
        names: set[str],
        resolved: Mapping[str, frozenset[str]],
        *,
        by_member: bool,
        now: Moment,
    ) -> bool:
        """Whether the assignment of all subscribed topics fits into memory.

        Otherwise raises MqError COORDINATOR_NOT_AVAILABLE if a member changed its subscription. If
        only topics have grown, the group continues with its present assignment until there is room.
        """
        wanted = sum(map(self.state.topics.partitions, {*names, *topics_of(resolved, resolved)}))
        more = ASSIGNED_PARTITION_BYTES * wanted - group.assigned_memory
        if more > 0:
            if by_member:
                self.state.account.make_room(
                    more, f"the assignment of group {group.group_id}", now.seconds
                )
            elif more > self.state.account.available(more, now.seconds):
                return False
            self.state.account.reserve(more)
        group.subscriptions.assigned_later = wanted
        return True

    def _update_expressions(
        self, group: ConsumerGroup, change: MemberChange, draft: Draft, now: Moment
    ) -> tuple[dict[str, frozenset[str]], bool]:
        """The topics of all expressions after the change, and whether those of any have changed."""
        resolved = group.subscriptions.resolved()
        regexes = group.subscriptions.regexes.copy()
        if (
            change.replaces or change.member.member_id
        ) in group.members and change.member.topic_regex:
            regexes[change.member.topic_regex] -= 1
        if change.updated.topic_regex:
            regexes[change.updated.topic_regex] += 1
        self.delete_unused(group, regexes, resolved, draft)
        live = [text for text in sorted(regexes) if regexes[text]]
        if not live or group.subscriptions.resolution is not None:
            return resolved, False
        wanted = [text for text in live if text not in resolved]
        if not wanted and self._is_stale(group, live, now):
            wanted = live
        if not wanted:
            return resolved, False
        if change.updated.topic_regex in wanted and change.updated.topic_regex not in resolved:
            most = MATCHED_TOPIC_BYTES * len(self.state.topics.names())
            self.state.account.make_room(
                most, f"an expression of group {group.group_id}", now.seconds
            )
        resolution = Resolution(wanted, self.state.topics)
        if resolution.advance():
            return resolved, self.note_resolution(group, resolution, regexes, resolved, draft, now)
        group.subscriptions.resolution = resolution
        self._timers.continue_search(group, now)
        return resolved, False

    def _is_stale(self, group: ConsumerGroup, live: Iterable[str], now: Moment) -> bool:
        """Whether all expressions must be matched again: a topic is new, or time has passed."""
        age = now.wall_ms - max(group.subscriptions.expressions[text].timestamp for text in live)
        if 0 <= age <= _REFRESH_MS_MIN:
            return False
        oldest = min(group.subscriptions.resolved_at.get(text, -1) for text in live)
        return oldest < self.names_version or age > _REFRESH_MS_MAX

    def note_resolution(
        self,
        group: ConsumerGroup,
        resolution: Resolution,
        regexes: Mapping[str, int],
        resolved: dict[str, frozenset[str]],
        draft: Draft,
        now: Moment,
    ) -> bool:
        """Write the topics that were found for expressions that are still in use.

        True if those of any have changed.
        """
        group.subscriptions.resolution = None
        changed = False
        for text, names in resolution.matched.items():
            if not regexes.get(text):
                continue
            changed = (
                changed
                or resolved.get(text, frozenset()) != frozenset(names)
                or text not in resolved
            )
            resolved[text] = frozenset(names)
            group.subscriptions.resolved_at[text] = resolution.version
            self.state.account.reserve(MATCHED_TOPIC_BYTES * len(names))
            value = records.RegularExpression(tuple(names), resolution.version, now.wall_ms)
            draft.write(records.RegularExpressionKey(group.group_id, text), value)
        return changed

    def delete_unused(
        self,
        group: ConsumerGroup,
        regexes: Mapping[str, int],
        resolved: dict[str, frozenset[str]],
        draft: Draft,
    ) -> None:
        """Delete the topics of expressions without members."""
        for text in sorted(resolved):
            if not regexes.get(text):
                draft.delete(records.RegularExpressionKey(group.group_id, text))
                del resolved[text]


def topics_of(resolved: Mapping[str, Iterable[str]], live: Mapping[str, Any]) -> set[str]:
    """The topics of the expressions that have members."""
    return {
        name
        for text, names in resolved.items()
        if live.get(text) is not None and live.get(text) != 0
        for name in names
    }
