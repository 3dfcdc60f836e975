"""Requests on a raw stream, as a client in another language sends them."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from mqd import limits
from mqd.client.cluster import ClusterClient
from mqd.io.net import Stream
from mqd.protocol.apis import by_name
from mqd.protocol.frame import FrameReader
from mqd.protocol.schema import Api, decode_response_header, encode_request_header
from mqd.security.plain import plain_token
from mqd.types import TopicPartition

PRODUCE = 0
PRODUCE_VERSION = 9
"""The newest version that names topics by name. mqd's own clients test topic ids."""
RESPONSE_SECONDS = 2.5

_SIZE = struct.Struct(">i")


class Wire:
    """Sends pipelined requests; responses arrive in the order of the requests."""

    def __init__(self, stream: Stream, client_id: str) -> None:
        self._stream = stream
        self._client_id = client_id
        self._frames = FrameReader(bytes_max=limits.RESPONSE_BYTES_MAX)
        self._waiting: deque[tuple[Api, int, int]] = deque()
        self._next = 0
        self._buffer = memoryview(bytearray(65536))

    async def send(
        self, declaration: Api, version: int, body: dict[str, Any], *, has_response: bool = True
    ) -> None:
        """Send a request. Raises OSError if the connection is broken, TooSlowError if the node does
        not read.
        """
        self._next += 1
        encoded = encode_request_header(declaration, version, self._next, self._client_id) + bytes(
            declaration.encode_request(version, body)
        )
        if has_response:
            self._waiting.append((declaration, version, self._next))
        with trio.fail_after(RESPONSE_SECONDS):
            await self._stream.send_all(_SIZE.pack(len(encoded)) + encoded)

    async def receive(self) -> Any:
        """Receive the response to the oldest request without a response."""
        declaration, version, correlation_id = self._waiting.popleft()
        with trio.fail_after(RESPONSE_SECONDS):
            while (frame := self._frames.next_frame()) is None:
                received = await self._stream.receive_into(self._buffer)
                if not received:
                    raise OSError("the broker closed the connection")
                self._frames.receive_data(self._buffer[:received])
        found, position = decode_response_header(declaration, version, frame)
        assert found == correlation_id, (found, correlation_id)
        return declaration.decode_response(version, frame, position)


async def _log_in(wire: Wire, client: ClusterClient) -> None:
    """SASL/PLAIN, if the client logs in. Raises OSError if the broker refuses."""
    if client._login is None:
        return
    security = client._login._security
    assert security.username is not None
    assert security.password is not None
    token = plain_token(security.username, security.password)
    for name, version, body in (
        ("sasl_handshake", 1, {"mechanism": "PLAIN"}),
        ("sasl_authenticate", 2, {"auth_bytes": token}),
    ):
        declaration = by_name(name)
        assert isinstance(declaration, Api)
        await wire.send(declaration, version, body)
        response = await wire.receive()
        if response.error_code:
            raise OSError(f"{name}: error {response.error_code}")


def produce_body(
    partition: TopicPartition, batch: bytes | bytearray, *, acks: int
) -> dict[str, Any]:
    rows = [{"index": partition.partition, "records": bytes(batch)}]
    return {
        "transactional_id": None,
        "acks": acks,
        "timeout_ms": 1500,
        "topic_data": [{"name": partition.topic, "partition_data": rows}],
    }


@asynccontextmanager
async def open_stream(client: ClusterClient, address: tuple[str, int]) -> AsyncIterator[Wire]:
    """A stream to a broker, for the duration of a block."""
    stream = await client._network.connect(*address, timeout=RESPONSE_SECONDS)
    try:
        wire = Wire(stream, client.client_id)
        await _log_in(wire, client)
        yield wire
    finally:
        stream.close()


@asynccontextmanager
async def open_leader_stream(
    client: ClusterClient, partition: TopicPartition
) -> AsyncIterator[Wire]:
    """A stream to the partition's leader, for the duration of a block."""
    leader = await client.leader(partition, deadline=trio.current_time() + RESPONSE_SECONDS)
    async with open_stream(client, leader.address) as wire:
        yield wire
