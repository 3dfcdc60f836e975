"""Attacks on the coordinators of share groups: states that no leader writes, states as large as
they may be, and a group that is named many times."""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID

from mqd.limits import SHARE_CHANGE_BATCHES_MAX, SHARE_STATE_RANGES_MAX
from mqd.server.share_state import coordinator_key
from mqd.share.ports import ShareKey
from mqd.testing.requests import frame
from tests.hostile.attack import KNOWN_TOPIC, PIPELINED, Attack
from tests.hostile.wire import Wire

GROUP = "hostile"
NAMED_TIMES = 20_000
_LAST = 2**63 - 1


def topic_id_of(wire: Wire) -> UUID:
    """The id of the topic of attackers. Zero before it exists."""
    topics = wire.ask("metadata", 12, {"topics": [{"name": KNOWN_TOPIC}]}).topics
    found: UUID = topics[0].topic_id
    return found


def written(*batches: tuple[int, int], start: int = -1) -> dict[str, Any]:
    """The row of a change, with acknowledged records."""
    return {
        "state_epoch": -1,
        "leader_epoch": -1,
        "start_offset": start,
        "delivery_complete_count": -1,
        "state_batches": [
            {"first_offset": first, "last_offset": last, "delivery_state": 2, "delivery_count": 1}
            for first, last in batches
        ],
    }


class ShareStates(Attack):
    """Operations on the state of one share partition of the topic of attackers."""

    tested_partitions: ClassVar[int] = 5

    def prepare(self) -> None:
        pass

    def initialized(self, wire: Wire) -> UUID:
        """Create a state. Returns the id of the topic."""
        topic_id = topic_id_of(wire)
        key = coordinator_key(ShareKey(GROUP, topic_id, 0))
        wire.ask("find_coordinator", 6, {"key_type": 2, "coordinator_keys": [key]})
        row = {"state_epoch": 0, "start_offset": 0}
        wire.ask("initialize_share_group_state", 0, self.body(topic_id, row))
        return topic_id

    @staticmethod
    def body(topic_id: UUID, row: dict[str, Any], times: int = 1) -> dict[str, Any]:
        topic = {"topic_id": topic_id, "partitions": [{"partition": 0, **row}] * times}
        return {"group_id": GROUP, "topics": [topic]}


class ImpossibleStates(ShareStates):
    """States that can be in no snapshot, and small changes of them, until one is made."""

    name = "impossible share states"

    def round(self, wire: Wire) -> None:
        topic_id = self.initialized(wire)
        for row in (
            written((_LAST, _LAST), start=_LAST),
            written((100, 2**40)),
            written((0, 9), (5, 12)),
            *[written()] * PIPELINED,
        ):
            wire.ask("write_share_group_state", 1, self.body(topic_id, row))


class LargeStates(ShareStates):
    """A state with as many batches as there may be, and requests of a few bytes that read it."""

    name = "large share states"

    def prepare(self) -> None:
        self.batches = [(10 * n + 5, 10 * n + 8) for n in range(SHARE_STATE_RANGES_MAX)]

    def round(self, wire: Wire) -> None:
        topic_id = self.initialized(wire)
        for begin in range(0, len(self.batches), SHARE_CHANGE_BATCHES_MAX):
            row = written(*self.batches[begin : begin + SHARE_CHANGE_BATCHES_MAX])
            wire.ask("write_share_group_state", 1, self.body(topic_id, row))
        read = self.body(topic_id, {"leader_epoch": -1}, times=PIPELINED)
        small = self.body(topic_id, written())
        for _ in range(PIPELINED):
            wire.send(frame("read_share_group_state", 0, read))
            wire.send(frame("write_share_group_state", 1, small))
        for _ in range(2 * PIPELINED):
            wire.receive()


class NamedShareGroup(Attack):
    """Descriptions of the offsets of one group, which they name many times."""

    name = "one share group named 20,000 times"
    tested_partitions = 500

    def prepare(self) -> None:
        member = {
            "group_id": GROUP,
            "member_id": "m",
            "member_epoch": 0,
            "rack_id": None,
            "subscribed_topic_names": [KNOWN_TOPIC],
        }
        self.join = frame("share_group_heartbeat", 1, member)
        groups = [{"group_id": GROUP, "topics": None}] * NAMED_TIMES
        self.bytes = frame("describe_share_group_offsets", 1, {"groups": groups})

    def round(self, wire: Wire) -> None:
        wire.ask("find_coordinator", 6, {"key_type": 0, "coordinator_keys": [GROUP]})
        wire.send(self.join)
        wire.receive()
        wire.send(self.bytes)
        wire.receive()
