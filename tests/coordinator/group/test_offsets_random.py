"""Committed offsets with events in any order: the next coordinator has the same state, and every
acknowledged commit counts.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mqd.coordinator.shard import Producer
from tests.coordinator.group.offset_support import (
    Group,
    commit,
    commit_in_transaction,
    delete,
    fetch_response,
)
from tests.coordinator.group.support import Options, Topics, group_harness

TOPICS = st.sampled_from(["t", "u"])
PARTITIONS = st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True)
OFFSETS = st.integers(0, 99)
PRODUCERS = st.sampled_from([Producer(1, 0), Producer(2, 5)])
RETENTION_MINUTES = 60


def known(group: Group) -> Any:
    """Everything about the group's offsets that clients can fetch."""
    result = []
    for stable in (False, True):
        topics = fetch_response(group, require_stable=stable)["topics"]
        result.append(
            {
                (one["name"], row["partition_index"]): row
                for one in topics
                for row in one["partitions"]
            }
        )
    wanted = [{"name": name, "partition_indexes": [0, 1, 2]} for name in "tu"]
    result.append(fetch_response(group, topics=wanted, require_stable=True)["topics"])
    return result, sorted(group.shard.state.by_id), group.shard.offsets.has_offsets("g")


class OffsetsMachine(RuleBasedStateMachine):
    """`standing` holds the offsets that were acknowledged outside transactions, and not deleted
    since; offsets of transactions may replace them.
    """

    @initialize()
    def begin(self) -> None:
        self.topics = Topics({"t": 3, "u": 3})
        self.group = group_harness(
            self.topics, Options(**{"offsets.retention.minutes": RETENTION_MINUTES})
        )
        self.standing: dict[tuple[str, int], set[int]] = {}
        """The possible committed offsets: one, or several until it is known whose commit is last in
        the log.
        """
        self.waiting: dict[Producer, dict[tuple[str, int], int]] = {}

    @rule(topic=TOPICS, partitions=PARTITIONS, offset=OFFSETS)
    def commit(self, topic: str, partitions: list[int], offset: int) -> None:
        codes = commit(self.group, *((partition, offset) for partition in partitions), topic=topic)
        assert set(codes.values()) == {0}
        self.standing |= {(topic, partition): {offset} for partition in partitions}

    @rule(topic=TOPICS, partitions=PARTITIONS, offset=OFFSETS, producer=PRODUCERS)
    def commit_in_transaction(
        self, topic: str, partitions: list[int], offset: int, producer: Producer
    ) -> None:
        codes = commit_in_transaction(
            self.group,
            *((partition, offset) for partition in partitions),
            topic=topic,
            producer=producer,
        )
        assert set(codes.values()) == {0}
        self.waiting.setdefault(producer, {}).update(
            {(topic, partition): offset for partition in partitions}
        )

    @rule(producer=PRODUCERS, committed=st.booleans())
    def end(self, producer: Producer, committed: bool) -> None:
        self.group.mark(producer, committed)
        for place, offset in self.waiting.pop(producer, {}).items():
            if committed:
                self.standing.setdefault(place, set()).add(offset)

    @rule(topic=TOPICS, partitions=PARTITIONS)
    def delete(self, topic: str, partitions: list[int]) -> None:
        if self.group.shard.state.get("g") is not None:
            delete(self.group, *partitions, topic=topic)
            self._forget(lambda place: place[0] == topic and place[1] in partitions)

    @rule(topic=TOPICS)
    def make_anew(self, topic: str) -> None:
        self.topics.delete(topic)
        self.topics.create(topic, 3)
        self.group.metadata_changed()
        self._forget(lambda place: place[0] == topic)

    @rule()
    def wait(self) -> None:
        """Wait until everything has expired that no transaction retains."""
        self.group.advance(RETENTION_MINUTES * 60 + 1200)
        held = {place for places in self.waiting.values() for place in places}
        self.standing = {
            place: offsets for place, offsets in self.standing.items() if place in held
        }

    @rule()
    def fail_over(self) -> None:
        before = known(self.group)
        self.group.fail_over()
        assert known(self.group) == before

    def _forget(self, is_gone: Any) -> None:
        self.standing = {
            place: offsets for place, offsets in self.standing.items() if not is_gone(place)
        }
        for places in self.waiting.values():
            for place in [one for one in places if is_gone(one)]:
                del places[place]

    @invariant()
    def possible_offsets_are_fetched(self) -> None:
        if not hasattr(self, "group"):
            return
        assert self.group.shard.account.exact == self.group.shard.recount()
        result, _, _ = known(self.group)
        for place, offsets in self.standing.items():
            assert result[0][place]["committed_offset"] in offsets
        assert result[0].keys() == self.standing.keys()
        held = {place for places in self.waiting.values() for place in places}
        assert {place for place, row in result[1].items() if row["error_code"]} == held & result[
            1
        ].keys()


TestOffsets = OffsetsMachine.TestCase
TestOffsets.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
