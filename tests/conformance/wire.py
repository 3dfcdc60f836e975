"""Bare sockets that use the protocol through kafka-python's schemas: an encoder and decoder that
are not mqd's.

`Wire.ask("Metadata", 12, topics=None)` is one request and its response, with nested structures
written as plain dicts and missing fields at their schema's defaults; `post` and `answer` are its
two halves, for pipelining; `send`, `frame` and `closed` are for invalid input.
"""

from __future__ import annotations

import itertools
import socket
import struct
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self
from uuid import UUID

import kafka.protocol.admin
import kafka.protocol.consumer
import kafka.protocol.metadata
import kafka.protocol.producer

TIMEOUT_S = 15.0
CLIENT_ID = "wire"
_MODULES = (
    kafka.protocol.admin,
    kafka.protocol.consumer,
    kafka.protocol.metadata,
    kafka.protocol.producer,
)


class Closed(Exception):
    """The broker closed the connection where a response was expected."""


class Ticket(NamedTuple):
    """A sent request, and the schema of its response."""

    api: str
    version: int
    correlation_id: int


def schema(name: str) -> Any:
    """kafka-python's class for e.g. `FetchRequest`."""
    for module in _MODULES:
        if hasattr(module, name):
            return getattr(module, name)
    raise LookupError(name)


def fill(kind: Any, fields: Mapping[str, Any]) -> Any:
    """An instance of one of kafka-python's message classes from plain dicts and lists."""
    values = {}
    for name, value in fields.items():
        field = kind.fields[name]
        if value is not None and field.is_struct_array():
            value = [fill(field.data_class, row) for row in value]
        elif value is not None and field.is_struct():
            value = fill(field.data_class, value)
        values[name] = value
    return kind(**values)


def encode(
    api: str,
    version: int,
    correlation_id: int = 1,
    client_id: str | None = CLIENT_ID,
    **fields: Any,
) -> bytes:
    """Header and body of a request, without the length."""
    message = fill(schema(f"{api}Request"), fields)
    message.API_VERSION = version
    message.with_header(correlation_id=correlation_id, client_id=client_id)
    return bytes(message.encode(header=True))


class Wire:
    """One TCP connection. Every wait has a deadline; exceeding it is a TimeoutError."""

    def __init__(self, host: str, port: int, timeout_s: float = TIMEOUT_S) -> None:
        self._correlation_ids = itertools.count(1)
        self.socket = socket.create_connection((host, port), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send raw bytes."""
        self.socket.sendall(data)

    def send_frame(self, body: bytes) -> None:
        """Send bytes after their length."""
        self.send(struct.pack(">i", len(body)) + body)

    def post(self, api: str, version: int, **fields: Any) -> Ticket:
        """Send a request without waiting."""
        ticket = Ticket(api, version, next(self._correlation_ids))
        self.send_frame(encode(api, version, ticket.correlation_id, **fields))
        return ticket

    def answer(self, ticket: Ticket) -> Any:
        """The next response, decoded. It must be this request's; the schema must cover every byte
        of it.
        """
        frame = self.frame()
        assert struct.unpack(">i", frame[:4]) == (ticket.correlation_id,), (
            "responses are in the order of the requests"
        )
        decoded = schema(f"{ticket.api}Response").decode(frame, version=ticket.version, header=True)
        decoded.with_header(correlation_id=ticket.correlation_id)
        assert len(decoded.encode(header=True)) == len(frame), (
            "bytes that the schema does not cover"
        )
        return decoded

    def ask(self, api: str, version: int, **fields: Any) -> Any:
        """One request and its response."""
        return self.answer(self.post(api, version, **fields))

    def frame(self) -> bytes:
        """The next whole response without its length. Raises Closed (also on a reset)."""
        try:
            (size,) = struct.unpack(">i", self._receive(4))
            return self._receive(size)
        except ConnectionError as error:
            raise Closed(str(error)) from error

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise Closed(f"connection closed after {len(data)} of {size} bytes")
            data += part
        return bytes(data)

    def closed(self) -> bool:
        """Wait until the broker closes the connection: True. False if it responds instead."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True


def until(
    condition: Callable[[], Any],
    what: str,
    timeout_s: float = TIMEOUT_S,
    *,
    details: Callable[[], Any] = lambda: "",
) -> Any:
    """Poll until `condition` returns something true, and return that.

    Fails the test after the deadline, with the result of `details`.
    """
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:g} s {details()}"
        time.sleep(0.02)
    return value


# -- common requests


def new_topic(
    name: str,
    *,
    partitions: int = 1,
    replicas: int = 1,
    configs: Mapping[str, str | None] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A row of CreateTopics."""
    rows = [{"name": key, "value": value} for key, value in (configs or {}).items()]
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replicas,
        "assignments": [],
        "configs": rows,
    } | more


def create_topics(
    wire: Wire, *topics: dict[str, Any], version: int = 7, validate_only: bool = False
) -> dict[str, Any]:
    """CreateTopics; the rows of the response by topic name."""
    answer = wire.ask(
        "CreateTopics", version, topics=topics, timeout_ms=10_000, validate_only=validate_only
    )
    return {row.name: row for row in answer.topics}


def create_topic(
    wire: Wire, name: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None
) -> str:
    """Create a topic and wait until its partitions have leaders: metadata may name the leader
    before the leader itself applies it.

    The topic keeps records forever, because tests write old timestamps. In a cluster the node of
    this connection leads it, because tests continue with that node.
    """
    wanted = new_topic(
        name, partitions=partitions, configs={"retention.ms": "-1"} | dict(configs or {})
    )
    replicas = nodes_from_here(wire)
    if len(replicas) > 1:
        rows = [
            {"partition_index": partition, "broker_ids": replicas[:3]}
            for partition in range(partitions)
        ]
        wanted |= {"num_partitions": -1, "replication_factor": -1, "assignments": rows}
    row = create_topics(wire, wanted)[name]
    assert row.error_code == 0, row
    until(lambda: has_leaders(wire, name, partitions), f"leaders of {name}")
    for partition in range(partitions):
        until(
            lambda: list_offsets(wire, name, -1, partition=partition).error_code == 0,  # noqa: B023
            f"{name}-{partition}",
        )
    return name


def nodes_from_here(wire: Wire) -> list[int]:
    """The ids of all nodes, starting with the node at the other end."""
    port = wire.socket.getpeername()[1]
    return [
        row.node_id
        for row in sorted(
            metadata(wire, []).brokers, key=lambda row: (row.port != port, row.node_id)
        )
    ]


def metadata(
    wire: Wire, names: list[str] | None, *, version: int = 12, create: bool = False
) -> Any:
    """The Metadata response for these topics (None: all)."""
    topics = None if names is None else [{"name": name} for name in names]
    return wire.ask("Metadata", version, topics=topics, allow_auto_topic_creation=create)


def has_leaders(wire: Wire, name: str, partitions: int) -> bool:
    """Whether every partition of the topic exists and has a leader."""
    (row,) = metadata(wire, [name]).topics
    return (
        row.error_code == 0
        and len(row.partitions) == partitions
        and all(p.error_code == 0 and p.leader_id >= 0 for p in row.partitions)
    )


def topic_id(wire: Wire, name: str) -> UUID:
    """The topic's UUID."""
    (row,) = metadata(wire, [name]).topics
    assert row.error_code == 0, row
    assert isinstance(row.topic_id, UUID)
    return row.topic_id


def produce_fields(
    topic: str | UUID, data: bytes | None, *, partition: int = 0, acks: int = -1
) -> dict[str, Any]:
    """A Produce request with one partition. A topic id needs version 13."""
    named = {"topic_id": topic} if isinstance(topic, UUID) else {"name": topic}
    rows = [{"index": partition, "records": data}]
    return {
        "transactional_id": None,
        "acks": acks,
        "timeout_ms": 10_000,
        "topic_data": [named | {"partition_data": rows}],
    }


def produce(
    wire: Wire,
    topic: str | UUID,
    data: bytes | None,
    *,
    version: int = 9,
    partition: int = 0,
    acks: int = -1,
) -> Any:
    """Produce to one partition; returns its row of the response."""
    answer = wire.ask(
        "Produce", version, **produce_fields(topic, data, partition=partition, acks=acks)
    )
    ((row,),) = [response.partition_responses for response in answer.responses]
    assert row.index == partition
    return row


Wanted = Mapping[Any, Mapping[int, int]]
"""Topic (a name, or from Fetch 13 on an id) -> partition -> offset."""


def fetch_fields(
    wanted: Wanted,
    *,
    partition_max_bytes: int = 1_000_000,
    leader_epoch: int = -1,
    forgotten: Mapping[Any, list[int]] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A Fetch request; `more` are its own fields by name."""

    def named(topic: Any) -> dict[str, Any]:
        return {"topic_id": topic} if isinstance(topic, UUID) else {"topic": topic}

    def row(partition: int, offset: int) -> dict[str, Any]:
        return {
            "partition": partition,
            "fetch_offset": offset,
            "current_leader_epoch": leader_epoch,
            "partition_max_bytes": partition_max_bytes,
        }

    fields = {
        "max_wait_ms": 500,
        "min_bytes": 1,
        "max_bytes": 50_000_000,
        "session_id": 0,
        "session_epoch": -1,
        "rack_id": "",
    }
    topics = [
        named(topic) | {"partitions": [row(*item) for item in partitions.items()]}
        for topic, partitions in wanted.items()
    ]
    dropped = [
        named(topic) | {"partitions": partitions} for topic, partitions in (forgotten or {}).items()
    ]
    return fields | {"topics": topics, "forgotten_topics_data": dropped} | more


def fetch(wire: Wire, wanted: Wanted, *, version: int = 12, **options: Any) -> Any:
    """One Fetch and its response."""
    return wire.ask("Fetch", version, **fetch_fields(wanted, **options))


def fetch_one(
    wire: Wire,
    topic: str | UUID,
    offset: int,
    *,
    version: int = 12,
    partition: int = 0,
    **options: Any,
) -> Any:
    """Fetch one partition outside any session; returns its row."""
    answer = fetch(wire, {topic: {partition: offset}}, version=version, **options)
    assert answer.error_code == 0, answer
    ((row,),) = [response.partitions for response in answer.responses]
    assert row.partition_index == partition
    return row


def list_offsets(
    wire: Wire,
    topic: str,
    timestamp: int,
    *,
    version: int = 7,
    partition: int = 0,
    leader_epoch: int = -1,
) -> Any:
    """ListOffsets of one partition; returns its row."""
    rows = [
        {"partition_index": partition, "timestamp": timestamp, "current_leader_epoch": leader_epoch}
    ]
    answer = wire.ask(
        "ListOffsets",
        version,
        replica_id=-1,
        topics=[{"name": topic, "partitions": rows}],
        timeout_ms=10_000,
    )
    ((row,),) = [response.partitions for response in answer.topics]
    assert row.partition_index == partition
    return row


def new_producer_id(wire: Wire, version: int = 4) -> tuple[int, int]:
    """(producer id, epoch) of a new idempotent producer.

    A broker that has just started may return a retriable error.
    """

    def ask() -> Any:
        answer = wire.ask(
            "InitProducerId", version, transactional_id=None, transaction_timeout_ms=60_000
        )
        return answer if answer.error_code == 0 else None

    answer = until(ask, "a producer id")
    return answer.producer_id, answer.producer_epoch


def found_coordinator(wire: Wire, key: str, key_type: int, *, version: int = 4) -> tuple[str, int]:
    """Host and port. The first request creates the internal topic."""

    def ask() -> Any:
        (row,) = wire.ask(
            "FindCoordinator", version, key_type=key_type, coordinator_keys=[key]
        ).coordinators
        return row if row.error_code == 0 else None

    row = until(ask, f"the coordinator of {key}", 30)
    return row.host, row.port
