"""Requests of share groups (KIP-932), and their responses as plain values.

A response has the fields whose value is not the schema's default, without the throttle time. Topic
ids are the names of their topics, and records are the offsets of their batches. So a test compares
whole responses. Error messages are apart: Apache Kafka has none for some errors for which mqd has.
kafka-python has no schemas of share groups: these are mqd's, which Apache Kafka understands, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from mqd.protocol import apis
from mqd.protocol.schema import Message, decode_response_header, encode_request_header

from .batches import batch, parse
from .wire import Ticket, Wire, found_coordinator, produce, topic_id, until

Plain = dict[str, Any]
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
GROUP_CONFIG = 32
LOAD_MS = 300
"""Apache Kafka's response has no row for a share partition that it has not loaded yet."""
_SET = 0
_MESSAGES = {"error_message", "acknowledge_error_message"}
Acknowledged = tuple[int, ...]
"""First offset, last offset, acknowledge types."""


class ShareWire(Wire):
    """A connection to a broker that serves share groups."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self.names: dict[UUID, str] = {}
        """The name of each topic that the test knows."""
        self.messages: list[str] = []
        """The error messages of the last response."""
        self._sent = Ticket("", 0, 0)

    def id_of(self, topic: str) -> UUID:
        """The id of a topic, whose name takes its place in responses."""
        found = topic_id(self, topic)
        self.names[found] = topic
        return found

    def exchange(self, name: str, version: int = -1, /, **fields: Any) -> Plain:
        """One request and its response. `version` -1: the last one."""
        self.begin(name, version, **fields)
        return self.finish()

    def begin(self, name: str, version: int = -1, /, **fields: Any) -> None:
        """Send a request."""
        api = apis.by_name(name)
        version = api.versions[1] if version == -1 else version
        correlation_id = next(self._correlation_ids)
        self._sent = Ticket(name, version, correlation_id)
        header = encode_request_header(api, version, correlation_id, "wire")
        self.send_frame(header + api.encode_request(version, fields))

    def finish(self) -> Plain:
        """The response to the last request."""
        name, version, correlation_id = self._sent
        api = apis.by_name(name)
        frame = self.frame()
        found, position = decode_response_header(api, version, frame)
        assert found == correlation_id
        response = api.decode_response(version, frame, position)
        assert len(api.encode_response(version, response)) == len(frame) - position, (
            "bytes that the schema does not cover"
        )
        self.messages = []
        return self._plain(api.response, version, response)

    def _plain(self, message: Message, version: int, values: Mapping[str, Any]) -> Plain:
        found = {}
        for field in message.fields:
            if not field.in_version(version) or field.name == "throttle_time_ms":
                continue
            value = values[field.name]
            if field.name in _MESSAGES:
                self.messages += [value] if value else []
                continue
            if field.name == "records":
                value = [(one.base_offset, one.last_offset) for one in parse(value)] or value
            elif value != field.new():
                value = self._plain_value(field.kind, version, value)
            if value != field.new():
                found[field.name] = value
        return found

    def _plain_value(self, kind: Any, version: int, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(kind, Message):
            return self._plain(kind, version, value)
        if isinstance(value, list):
            return [self._plain_value(kind.element, version, one) for one in value]
        return self.names.get(value, value) if isinstance(value, UUID) else value

    def configure(self, group: str, **configs: str) -> None:
        """Set configs of a group."""
        rows = [
            {"name": name.replace("_", "."), "config_operation": _SET, "value": value}
            for name, value in configs.items()
        ]
        resource = {"resource_type": GROUP_CONFIG, "resource_name": group, "configs": rows}
        (row,) = self.ask(
            "IncrementalAlterConfigs", 1, resources=[resource], validate_only=False
        ).responses
        assert row.error_code == 0, row

    def write(self, topic: str, *values: bytes, partition: int = 0) -> None:
        """Produce one batch."""
        assert produce(self, topic, batch(*values), partition=partition).error_code == 0


class Sharing:
    """One group and one topic, at a broker that leads the topic and coordinates the group."""

    def __init__(self, wire: ShareWire, group: str, topic: str) -> None:
        self.wire, self.group, self.topic = wire, group, topic
        self.topic_id = wire.id_of(topic)
        self.epoch = 1
        """For tests that count the epochs of a share session."""

    def heartbeat(self, epoch: int, member: str = "m1", **more: Any) -> Plain:
        fields = {"group_id": self.group, "member_id": member, "member_epoch": epoch}
        return self.wire.exchange("ShareGroupHeartbeat", **fields | more)

    def join(self, member: str = "m1") -> int:
        """Join, and wait for partitions: Apache Kafka assigns them when their states exist.
        Returns the member epoch."""
        found = self.heartbeat(0, member, subscribed_topic_names=[self.topic])

        def assigned() -> bool:
            nonlocal found
            if not found.get("assignment"):
                found |= self.heartbeat(found["member_epoch"], member)
            return bool(found.get("assignment"))

        until(assigned, "partitions")
        epoch: int = found["member_epoch"]
        return epoch

    def open(self, member: str = "m1") -> None:
        """Join, and open a share session. The broker has loaded the share partition then. The next
        epoch is 1."""
        self.join(member)
        found = self.fetch(0, member=member, max_wait_ms=LOAD_MS)
        assert found["responses"] == self.rows({}), found

    def fetch(
        self,
        epoch: int,
        *acknowledged: Acknowledged,
        member: str = "m1",
        version: int = 2,
        **more: Any,
    ) -> Plain:
        """ShareFetch. It names the topic to begin a session, and to acknowledge."""
        self.post_fetch(epoch, *acknowledged, member=member, version=version, **more)
        return self.wire.finish()

    def post_fetch(
        self,
        epoch: int,
        *acknowledged: Acknowledged,
        member: str = "m1",
        version: int = 2,
        **more: Any,
    ) -> None:
        """Send it without waiting."""
        fields = {
            "group_id": self.group,
            "member_id": member,
            "share_session_epoch": epoch,
            "max_wait_ms": 0,
            "min_bytes": 1,
            "max_bytes": 1_000_000,
            "max_records": 500,
            "batch_size": 500,
            "topics": self.topics(*acknowledged) if acknowledged or epoch == 0 else [],
            "forgotten_topics_data": [],
        }
        self.wire.begin("ShareFetch", version, **fields | more)

    def acknowledge(
        self,
        epoch: int,
        *acknowledged: Acknowledged,
        member: str = "m1",
        version: int = 2,
        **more: Any,
    ) -> Plain:
        """ShareAcknowledge."""
        fields = {
            "group_id": self.group,
            "member_id": member,
            "share_session_epoch": epoch,
            "topics": self.topics(*acknowledged) if acknowledged else [],
        }
        return self.wire.exchange("ShareAcknowledge", version, **fields | more)

    def topics(
        self, *acknowledged: Acknowledged, topic_id: UUID | None = None, partition: int = 0
    ) -> list[Plain]:
        batches = [
            {"first_offset": first, "last_offset": last, "acknowledge_types": types}
            for first, last, *types in acknowledged
        ]
        row = {"partition_index": partition, "acknowledgement_batches": batches}
        return [{"topic_id": topic_id or self.topic_id, "partitions": [row]}]

    def rows(self, *partitions: Plain) -> list[Plain]:
        """The `responses` of a ShareFetch or ShareAcknowledge."""
        return [{"topic_id": self.topic, "partitions": list(partitions)}]

    def write(self, *counts: int) -> None:
        """One batch for each number of records."""
        for count in counts:
            self.wire.write(self.topic, *(b"%d" % n for n in range(count)))

    def leave(self, member: str = "m1") -> None:
        assert self.heartbeat(-1, member) == {"member_id": member, "member_epoch": -1}


def group_here(wire: Wire, new_name: Callable[[], str]) -> str:
    """The name of a new group that the broker at the other end coordinates."""
    port = wire.socket.getpeername()[1]
    while found_coordinator(wire, group := new_name(), 0)[1] != port:
        pass
    return group


def acquired(first: int, last: int, count: int = 1) -> Plain:
    """A row of acquired records, without its defaults."""
    row = {"first_offset": first, "last_offset": last, "delivery_count": count}
    return {name: value for name, value in row.items() if value}
