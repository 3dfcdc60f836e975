"""Heartbeats of the members of one KIP-848 group: mqd/coordinator/group/consumer.py,
consumer_group.py, consumer_steps.py and assignors.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from mqd.coordinator.group.consumer_member import LEAVING
from tests.coordinator.group.consumer_support import Group, places


class ConsumerDriver:
    def __init__(self, directory: Path) -> None:
        self._group = Group({})

    def topic(self, name: str, *, partitions: int) -> None:
        """A topic is created, or grows; the coordinator sees the new metadata."""
        topics = self._group.topics
        (topics.grow if topics.topic_id(name) else topics.create)(name, partitions)
        self._group.harness.metadata_changed()

    def join(
        self,
        member: str,
        *,
        topics: tuple[str, ...] = (),
        regex: str = "",
        static: str = "",
        rebalance_timeout: int = 30,
    ) -> str:
        """The first heartbeat of a member, with epoch 0."""
        more: dict[str, Any] = {"rebalance_timeout_ms": rebalance_timeout * 1000}
        if regex:
            more["subscribed_topic_regex"] = regex
        if static:
            more["instance_id"] = static
        return self._shown(self._group.join(member, topics or None, **more))

    def heartbeat(self, member: str, *, epoch: int, owned: tuple[str, ...] | None = None) -> str:
        more: dict[str, Any] = {}
        if owned is not None:
            more["owned"] = [_place(one) for one in owned]
        return self._shown(self._group.beat(member, epoch, **more))

    def leave(self, member: str) -> str:
        return self._shown(self._group.leave(member, LEAVING))

    def wait(self, seconds: int) -> None:
        self._group.later(seconds)

    def coordinator_fails_over(self) -> None:
        """The next coordinator has read the log, and knows nothing else."""
        self._group.harness.fail_over()

    # -- what it shows

    def group(self) -> list[str]:
        """The state, and each member: its epoch, its partitions and its target."""
        described = self._group.described()
        shown = [f"{described['group_state']} epoch={described['group_epoch']}"]
        for row in described["members"]:
            has, target = _described(row["assignment"]), _described(row["target_assignment"])
            line = f"{row['member_id']}: epoch={row['member_epoch']} has={has}"
            shown.append(line if has == target else f"{line} target={target}")
        return shown

    def _shown(self, answer: Mapping[str, Any]) -> str:
        shown = f"epoch={answer['member_epoch']}"
        assigned = places(answer.get("assignment"))
        return shown if assigned is None else f"{shown} assigned={self._named(assigned)}"

    def _named(self, found: Iterable[tuple[UUID, int]]) -> str:
        names = [(self._group.topics.topic_name(topic), index) for topic, index in found]
        return ",".join(f"{name}-{index}" for name, index in sorted(names)) or "none"


def _described(assignment: Any) -> str:
    rows = assignment["topic_partitions"]
    found = sorted(f"{row['topic_name']}-{one}" for row in rows for one in row["partitions"])
    return ",".join(found) or "none"


def _place(text: str) -> tuple[str, int]:
    topic, _, partition = text.rpartition("-")
    return topic, int(partition)
