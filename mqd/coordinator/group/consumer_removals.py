"""Removal of members from a consumer group. If only members of the classic protocol remain, the
group becomes a classic group (KIP-848)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from mqd.coordinator.group import records
from mqd.coordinator.group.classic_rebalance import Rebalance
from mqd.coordinator.group.consumer_group import ConsumerGroup, remove_member
from mqd.coordinator.group.consumer_member import ConsumerGroupMember
from mqd.coordinator.group.consumer_updates import MemberUpdates, topics_of
from mqd.coordinator.group.migration import downgrade, may_downgrade
from mqd.coordinator.group.part import Draft
from mqd.coordinator.group.state import State
from mqd.coordinator.group.subscriptions import topics_hash
from mqd.coordinator.shard import Moment

logger = logging.getLogger(__name__)


class Removals:
    """For the consumer groups of a shard."""

    def __init__(self, state: State, updates: MemberUpdates, rebalance: Rebalance) -> None:
        self.state = state
        self._updates = updates
        self._rebalance = rebalance

    def remove(
        self,
        group: ConsumerGroup,
        members: Sequence[ConsumerGroupMember],
        draft: Draft,
        now: Moment,
        reason: str,
    ) -> None:
        """Remove members and release their partitions."""
        if not members:
            return
        for member in members:
            logger.info(
                "member removed group=%s member=%s reason=%s",
                group.group_id,
                member.member_id,
                reason,
            )
        removed = {member.member_id for member in members}
        if may_downgrade(self.state, group, removed):
            self.become_classic(group, removed, draft, now)
            return
        for member in members:
            remove_member(group, member.member_id, draft)
        resolved = group.subscriptions.resolved()
        regexes = group.subscriptions.regexes.copy()
        for member in members:
            if member.topic_regex:
                regexes[member.topic_regex] -= 1
        self._updates.delete_unused(group, regexes, resolved, draft)
        names = group.subscriptions.subscribed_names(self.state.topics.names(), members)
        metadata_hash = topics_hash(self.state.topics, {*names, *topics_of(resolved, regexes)})
        draft.write(
            records.ConsumerGroupMetadataKey(group.group_id),
            records.ConsumerGroupMetadata(group.epoch + 1, metadata_hash),
        )

    def become_classic(
        self,
        group: ConsumerGroup,
        leaving: Collection[str],
        draft: Draft,
        now: Moment,
        joining: ConsumerGroupMember | None = None,
        *,
        rebalance: bool = True,
    ) -> None:
        """Write the group as a classic group of the members that stay (migration.py)."""
        classic, rebalance = downgrade(
            self.state, group, leaving, draft, now, joining, rebalance=rebalance
        )
        reason = "the last member of the consumer protocol has left"
        self._rebalance.downgrade(classic, draft, now, reason, rebalance=rebalance)
