"""Bare sockets that speak the protocol through kafka-python's schemas: an encoder and decoder that is not ours.

`Wire.call` is one request and its answer; `send`, `frame` and `closed` are for what no client would do.
"""

from __future__ import annotations

import itertools
import socket
import struct
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from kafka.protocol.admin import CreateTopicsRequest, CreateTopicsResponse
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import FetchRequest, FetchResponse, ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.metadata import MetadataRequest, MetadataResponse
from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse, ProduceRequest, ProduceResponse

CreatableTopic = CreateTopicsRequest.CreatableTopic
FetchTopic = FetchRequest.FetchTopic
ForgottenTopic = FetchRequest.ForgottenTopic
ListOffsetsTopic = ListOffsetsRequest.ListOffsetsTopic
TopicProduceData = ProduceRequest.TopicProduceData

TIMEOUT_S = 15.0
CLIENT_ID = "wire"


class Closed(Exception):
    """The broker closed the connection where an answer was expected."""


class Wire:
    """One TCP connection. Every wait has a deadline; running into it is a TimeoutError."""

    def __init__(self, host: str, port: int, timeout_s: float = TIMEOUT_S) -> None:
        self._correlation_ids = itertools.count(1)
        self.socket = socket.create_connection((host, port), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Raw bytes, as they are."""
        self.socket.sendall(data)

    def send_frame(self, body: bytes) -> None:
        """Bytes behind their length."""
        self.send(struct.pack(">i", len(body)) + body)

    def request(self, message: ApiMessage, version: int, client_id: str | None = CLIENT_ID) -> int:
        """Send a request; returns its correlation id."""
        correlation_id = next(self._correlation_ids)
        self.send_frame(encode(message, version, correlation_id, client_id))
        return correlation_id

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise Closed(f"connection closed after {len(data)} of {size} bytes")
            data += part
        return bytes(data)

    def frame(self) -> bytes:
        """The next whole answer without its length. Raises Closed (also on a reset)."""
        try:
            (size,) = struct.unpack(">i", self._receive(4))
            return self._receive(size)
        except ConnectionError as error:
            raise Closed(str(error)) from error

    def response(self, kind: type[ApiMessage], version: int, correlation_id: int) -> Any:
        """The next answer, which must be to `correlation_id`, decoded; every byte of it must be used."""
        frame = self.frame()
        assert struct.unpack(">i", frame[:4]) == (correlation_id,), "answers must come in the order of the requests"
        answer = kind.decode(frame, version=version, header=True)
        answer.with_header(correlation_id=correlation_id)
        assert len(answer.encode(header=True)) == len(frame), "bytes that the schema does not explain"
        return answer

    def call(self, message: ApiMessage, kind: type[ApiMessage], version: int) -> Any:
        """One request, its answer."""
        return self.response(kind, version, self.request(message, version))

    def closed(self) -> bool:
        """Wait until the broker closes the connection: True. False if it answers instead; a deadline passed raises."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def silent_for(self, seconds: float) -> bool:
        """Whether nothing at all arrives for that long (the one kind of wait that has to be a real one)."""
        self.socket.settimeout(seconds)
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(TIMEOUT_S)
        return False


def encode(message: ApiMessage, version: int, correlation_id: int = 1, client_id: str | None = CLIENT_ID) -> bytes:
    """Header and body of a request, without the length."""
    message.API_VERSION = version
    message.with_header(correlation_id=correlation_id, client_id=client_id)
    return bytes(message.encode(version=version, header=True))


def until(condition: Callable[[], Any], what: str, timeout_s: float = TIMEOUT_S) -> Any:
    """Poll until `condition` returns something true, and return that. Fails the test after the deadline."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:g} s"
        time.sleep(0.02)
    return value


# -- the requests that most tests need


def create_topic(wire: Wire, name: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None, version: int = 7) -> str:
    """Create a topic and wait until its partitions have leaders. It keeps records for ever: tests write old timestamps."""
    wanted = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        assignments=[],
        configs=[
            CreatableTopic.CreatableTopicConfig(name=key, value=value)
            for key, value in ({"retention.ms": "-1"} | dict(configs or {})).items()
        ],
    )
    answer = wire.call(CreateTopicsRequest(topics=[wanted], timeout_ms=10_000, validate_only=False), CreateTopicsResponse, version)
    assert [row.error_code for row in answer.topics] == [0], answer
    until(lambda: has_leaders(wire, name, partitions), f"leaders of {name}")
    return name


def metadata(wire: Wire, names: list[str] | None, *, version: int = 13, create: bool = False) -> Any:
    """The Metadata answer for these topics (None: all)."""
    topics = None if names is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=create, include_topic_authorized_operations=False)
    return wire.call(request, MetadataResponse, version)


def has_leaders(wire: Wire, name: str, partitions: int) -> bool:
    """Whether every partition of the topic is there and led."""
    (row,) = metadata(wire, [name]).topics
    return row.error_code == 0 and len(row.partitions) == partitions and all(p.error_code == 0 and p.leader_id >= 0 for p in row.partitions)


def topic_id(wire: Wire, name: str) -> Any:
    """The topic's UUID."""
    (row,) = metadata(wire, [name]).topics
    assert row.error_code == 0, row
    return row.topic_id


def produce_request(
    topic: Any, data: bytes | None, *, version: int, partition: int = 0, acks: int = -1, transactional_id: str | None = None
) -> Any:
    """A Produce request with one partition. `topic` is a name, from version 13 on an id."""
    row = TopicProduceData.PartitionProduceData(index=partition, records=data)
    named = {"topic_id": topic} if version >= 13 else {"name": topic}
    return ProduceRequest(
        transactional_id=transactional_id, acks=acks, timeout_ms=10_000, topic_data=[TopicProduceData(partition_data=[row], **named)]
    )


def produce(wire: Wire, topic: Any, data: bytes | None, *, version: int = 9, partition: int = 0, acks: int = -1) -> Any:
    """Produce to one partition; returns its row of the answer."""
    answer = wire.call(produce_request(topic, data, version=version, partition=partition, acks=acks), ProduceResponse, version)
    ((row,),) = [response.partition_responses for response in answer.responses]
    assert row.index == partition
    return row


def fetch_request(
    wanted: Mapping[Any, Mapping[int, int]],
    *,
    version: int,
    max_wait_ms: int = 500,
    min_bytes: int = 1,
    max_bytes: int = 50_000_000,
    partition_max_bytes: int = 1_000_000,
    session_id: int = 0,
    session_epoch: int = -1,
    forgotten: Mapping[Any, list[int]] | None = None,
    leader_epoch: int = -1,
    isolation_level: int = 0,
) -> FetchRequest:
    """A Fetch request: `wanted` maps topic (a name, from version 13 on an id) -> partition -> offset."""
    field = "topic_id" if version >= 13 else "topic"
    topics = [
        FetchTopic(
            partitions=[
                FetchTopic.FetchPartition(
                    partition=index,
                    fetch_offset=offset,
                    current_leader_epoch=leader_epoch,
                    partition_max_bytes=partition_max_bytes,
                    log_start_offset=-1,
                    last_fetched_epoch=-1,
                )
                for index, offset in partitions.items()
            ],
            **{field: name},
        )
        for name, partitions in wanted.items()
    ]
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=topics,
        forgotten_topics_data=[ForgottenTopic(partitions=partitions, **{field: name}) for name, partitions in (forgotten or {}).items()],
        rack_id="",
    )


def fetch(wire: Wire, wanted: Mapping[Any, Mapping[int, int]], *, version: int = 12, **options: Any) -> Any:
    """One Fetch, its answer."""
    return wire.call(fetch_request(wanted, version=version, **options), FetchResponse, version)


def fetch_one(wire: Wire, topic: Any, offset: int, *, version: int = 12, partition: int = 0, **options: Any) -> Any:
    """Fetch one partition outside any session; returns its row."""
    answer = fetch(wire, {topic: {partition: offset}}, version=version, **options)
    assert answer.error_code == 0, answer
    ((row,),) = [response.partitions for response in answer.responses]
    assert row.partition_index == partition
    return row


def list_offsets(
    wire: Wire, topic: str, timestamp: int, *, version: int = 7, partition: int = 0, leader_epoch: int = -1, isolation_level: int = 0
) -> Any:
    """ListOffsets of one partition; returns its row."""
    row = ListOffsetsTopic.ListOffsetsPartition(partition_index=partition, timestamp=timestamp, current_leader_epoch=leader_epoch)
    request = ListOffsetsRequest(
        replica_id=-1, isolation_level=isolation_level, topics=[ListOffsetsTopic(name=topic, partitions=[row])], timeout_ms=10_000
    )
    answer = wire.call(request, ListOffsetsResponse, version)
    ((row,),) = [response.partitions for response in answer.topics]
    return row


def new_producer_id(wire: Wire) -> tuple[int, int]:
    """(producer id, epoch) of a new idempotent producer. A broker that has just started may ask to try again."""

    def ask() -> tuple[int, int] | None:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1)
        answer = wire.call(request, InitProducerIdResponse, 4)
        return (answer.producer_id, answer.producer_epoch) if answer.error_code == 0 else None

    return until(ask, "a producer id")  # type: ignore[no-any-return]
