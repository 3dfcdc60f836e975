"""An attacking client beside the checked ones. It sends incomplete frames, fetch sessions of
unknown partitions, duplicate rows, garbage, and many groups, ids and overrides; at times it reads
no responses. None of its requests may add a record to a checked topic, a member to a checked group,
or a commit. Its attacks can fill the small budgets of thresholds.py. It ends with the faults.
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import trio

from mqd.errors import ErrorCode
from mqd.io.net import Stream
from mqd.protocol.batch_builder import build_batch
from mqd.testing.requests import decoded, fetch_body, frame
from mqd.testing.violation import Violation

PAUSE_SECONDS = 0.15
"""The mean pause between two attacks of one attacker."""
ATTACKERS = 3
ATTACK_SECONDS_MAX = 2.5
_FETCH, _PRODUCE, _JOIN_GROUP, _ALTER, _INIT, _METADATA, _FIND, _CREATE = 12, 9, 3, 1, 4, 9, 4, 5
_GROUP, _TRANSACTIONAL_ID = 0, 1
_UNKNOWN = "not-there"
ATTACKERS_TOPIC = "of-the-attackers"
_PIPELINED = 20
_FLOOD = 600
"""The number of requests of one connection that take far longer than a turn, if requests have a
price (thresholds.py).
"""
_HALF_FRAME_BYTES = 90_000
_CROWD = 20
_NAMES = 16
_CORRELATION_ID_POSITION = 8
"""The position in a frame: after its length, the API key and the version."""

Connect = Callable[[], Awaitable[Stream]]


class _Coordinated(NamedTuple):
    name: str
    node_id: int


@asynccontextmanager
async def _opened(connect: Connect, count: int = 1) -> AsyncIterator[list[Stream]]:
    """Open this many connections for the duration of a block."""
    streams: list[Stream] = []
    try:
        while len(streams) < count:
            streams.append(await connect())
        yield streams
    finally:
        for stream in streams:
            stream.close()


class Hostile:
    """Attacks until cancelled. `counts`: its attacks and their rejections."""

    def __init__(
        self, connects: Mapping[int, Connect], topic: str, chance: random.Random, *, floods: bool
    ) -> None:
        """`connects`: node id -> function that opens a connection. `topic`: an existing, checked
        topic. `floods`: whether to fill the coordinators, if no other client uses them.
        """
        self.counts: Counter[str] = Counter()
        self._connects = connects
        self._topic = topic
        self._chance = chance
        self._number = 0
        self._attacks: list[Callable[[Connect], Awaitable[None]]] = [
            self._half_frames,
            self._slow_reader,
            self._unknown_session,
            self._rows_again,
            self._mixed,
            self._bad_batches,
            self._overrides,
            self._oversized,
            self._garbage,
            self._crowd,
        ]
        if floods:
            self._attacks += [
                self._groups,
                self._groups,
                self._transactional_ids,
                self._transactional_ids,
                self._flood,
                self._flood,
            ]

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(ATTACKERS):
                nursery.start_soon(self._attack_again_and_again)

    async def _attack_again_and_again(self) -> None:
        while True:
            await trio.sleep(self._chance.expovariate(1 / PAUSE_SECONDS))
            attack, connect = (
                self._chance.choice(self._attacks),
                self._chance.choice(list(self._connects.values())),
            )
            self.counts["hostile_attacks"] += 1
            with trio.move_on_after(ATTACK_SECONDS_MAX):
                try:
                    await attack(connect)
                except OSError:
                    self.counts["hostile_closed"] += 1

    def _name(self) -> str:
        self._number += 1
        return f"hostile-{self._number}"

    # -- memory

    async def _half_frames(self, connect: Connect) -> None:
        """Send several incomplete requests at once, and keep them for longer than a connection may
        wait for memory.
        """
        async with _opened(connect, 5) as streams:
            for stream in streams:
                await stream.send_all(struct.pack(">i", 3 * _HALF_FRAME_BYTES) + bytes(100))
            await trio.sleep(0.02)
            for stream in streams:
                await stream.send_all(bytes(_HALF_FRAME_BYTES))
            await trio.sleep(self._chance.uniform(0.1, 1.5))

    async def _slow_reader(self, connect: Connect) -> None:
        """Request many large responses, and read none."""
        async with _opened(connect) as (stream,):
            one = frame(
                "metadata",
                _METADATA,
                {
                    "topics": [
                        {"name": f"{_UNKNOWN}-{number}".ljust(200, "x")} for number in range(100)
                    ]
                },
            )
            for _ in range(_PIPELINED):
                await stream.send_all(one)
            await trio.sleep(ATTACK_SECONDS_MAX)

    async def _crowd(self, connect: Connect) -> None:
        """Open connections that send nothing."""
        async with _opened(connect, _CROWD):
            await trio.sleep(self._chance.uniform(0.1, 1.0))

    # -- work

    async def _unknown_session(self, connect: Connect) -> None:
        async with _opened(connect) as (stream,):
            first = await self._request(
                stream, "fetch", _FETCH, fetch_body(_UNKNOWN, list(range(150)), session_epoch=0)
            )
            session_id = first.session_id or 1
            epochs = range(1, 1 + _PIPELINED)
            requests = [
                frame(
                    "fetch", _FETCH, fetch_body("", [], session_id=session_id, session_epoch=epoch)
                )
                for epoch in epochs
            ]
            await self._pipelined(stream, requests)

    async def _rows_again(self, connect: Connect) -> None:
        """Send fetches that contain one partition many times."""
        async with _opened(connect) as (stream,):
            await self._pipelined(
                stream, [frame("fetch", _FETCH, fetch_body(self._topic, [0] * 300))] * 4
            )

    async def _flood(self, connect: Connect) -> None:
        """Send many small requests at once on one connection."""
        async with _opened(connect) as (stream,):
            await self._pipelined(stream, [frame("metadata", _METADATA, {"topics": []})] * _FLOOD)

    async def _mixed(self, connect: Connect) -> None:
        """Produce to a topic of the attackers, with a request after each that needs no waiting."""
        topic = {
            "name": ATTACKERS_TOPIC,
            "num_partitions": 1,
            "replication_factor": -1,
            "assignments": [],
            "configs": [],
        }
        create = {"topics": [topic], "timeout_ms": 1_000, "validate_only": False}
        batch = build_batch([(None, b"of the attacker")], timestamp=1_700_000_000_000)
        body = {
            "acks": -1,
            "timeout_ms": 1_000,
            "topic_data": [
                {"name": ATTACKERS_TOPIC, "partition_data": [{"index": 0, "records": batch}]}
            ],
        }
        async with _opened(connect) as (stream,):
            await self._request(stream, "create_topics", _CREATE, create)
            await self._pipelined(
                stream,
                [
                    frame("produce", _PRODUCE, body),
                    frame("metadata", _METADATA, {"topics": []}),
                ]
                * 3,
            )

    async def _bad_batches(self, connect: Connect) -> None:
        """Produce many damaged batches to a checked topic: none may be appended."""
        async with _opened(connect) as (stream,):
            batch = bytearray(
                build_batch([(None, b"of the attacker")], timestamp=1_700_000_000_000)
            )
            batch[-1] ^= 0xFF
            rows = [{"index": 0, "records": bytes(batch)} for _ in range(50)]
            body = {
                "acks": -1,
                "timeout_ms": 1_000,
                "topic_data": [{"name": self._topic, "partition_data": rows}],
            }
            await self._pipelined(stream, [frame("produce", _PRODUCE, body)] * 2)

    # -- state

    async def _overrides(self, connect: Connect) -> None:
        """Set configurations of groups that do not exist, with names of the maximum length and
        longer.
        """
        configs = [{"name": "consumer.session.timeout.ms", "config_operation": 0, "value": "1500"}]
        async with _opened(connect) as (stream,):
            for length in (100, 4_096, 4_096, 5_000):
                names = [self._name().ljust(length, "x") for _ in range(_NAMES)]
                resources = [
                    {"resource_type": 32, "resource_name": name, "configs": configs}
                    for name in names
                ]
                response = await self._request(
                    stream,
                    "incremental_alter_configs",
                    _ALTER,
                    {"resources": resources, "validate_only": False},
                )
                for one in response.responses:
                    self.counts["hostile_overrides"] += one.error_code == 0
                    self.counts["metadata_refusals"] += one.error_code == ErrorCode.POLICY_VIOLATION

    async def _groups(self, connect: Connect) -> None:
        """Join new groups with large metadata."""
        async with _opened(connect) as (finder,):
            for group in await self._names_of(finder, _GROUP):
                body = {
                    "group_id": group.name,
                    "session_timeout_ms": 10_000,
                    "rebalance_timeout_ms": 10_000,
                    "member_id": "",
                    "protocol_type": "consumer",
                    "protocols": [{"name": "range", "metadata": bytes(40_000)}],
                }
                async with _opened(self._connects[group.node_id]) as (stream,):
                    self._count(
                        (await self._request(stream, "join_group", _JOIN_GROUP, body)).error_code
                    )

    async def _transactional_ids(self, connect: Connect) -> None:
        async with _opened(connect) as (finder,):
            for one in await self._names_of(finder, _TRANSACTIONAL_ID):
                body = {
                    "transactional_id": one.name,
                    "transaction_timeout_ms": 10_000,
                    "producer_id": -1,
                    "producer_epoch": -1,
                }
                async with _opened(self._connects[one.node_id]) as (stream,):
                    self._count(
                        (await self._request(stream, "init_producer_id", _INIT, body)).error_code
                    )

    async def _names_of(self, stream: Stream, kind: int) -> list[_Coordinated]:
        """New names with the nodes that coordinate them; empty if there is no coordinator."""
        names = [self._name().ljust(100 if kind == _GROUP else 15_000, "x") for _ in range(_NAMES)]
        response = await self._request(
            stream, "find_coordinator", _FIND, {"key_type": kind, "coordinator_keys": names}
        )
        return [
            _Coordinated(one.key, one.node_id)
            for one in response.coordinators
            if one.error_code == 0
        ]

    def _count(self, code: int) -> None:
        self.counts["hostile_accepted"] += code == 0
        self.counts["coordinator_refusals"] += code == ErrorCode.COORDINATOR_NOT_AVAILABLE

    # -- bytes

    async def _oversized(self, connect: Connect) -> None:
        async with _opened(connect) as (stream,):
            await stream.send_all(
                struct.pack(">i", self._chance.choice([0x7FFF_FFFF, -1, 0, 3, 200_000_000]))
                + bytes(100)
            )
            await self._response(stream)

    async def _garbage(self, connect: Connect) -> None:
        async with _opened(connect) as (stream,):
            chance = self._chance
            size = chance.choice([8, 50, 1_000])
            valid = bytearray(frame("metadata", _METADATA, {"topics": [{"name": self._topic}]}))
            for _ in range(chance.randrange(1, 6)):
                valid[chance.randrange(4, len(valid))] = chance.randrange(256)
            sent = (
                bytes(valid)
                if chance.random() < 0.5
                else struct.pack(">i", size) + chance.randbytes(size)
            )
            await stream.send_all(sent)
            await self._response(stream)

    # -- internal

    async def _request(self, stream: Stream, name: str, version: int, body: dict[str, Any]) -> Any:
        await stream.send_all(frame(name, version, body))
        return decoded(name, version, await self._response(stream))

    async def _pipelined(self, stream: Stream, requests: Sequence[bytes]) -> None:
        """Send frames at once, with correlation ids. Raises Violation if responses have another
        order.
        """
        numbered = bytearray()
        for number, request in enumerate(requests):
            numbered += request[:_CORRELATION_ID_POSITION]
            numbered += struct.pack(">i", number) + request[_CORRELATION_ID_POSITION + 4 :]
        await stream.send_all(bytes(numbered))
        for number in range(len(requests)):
            (correlation_id,) = struct.unpack_from(">i", await self._response(stream))
            if correlation_id != number:
                raise Violation(f"I9: response {correlation_id} before response {number}")

    async def _response(self, stream: Stream) -> bytes:
        """The next response, without its length. Raises OSError if the connection ends."""
        (size,) = struct.unpack(">i", await self._exactly(stream, 4))
        return await self._exactly(stream, size)

    @staticmethod
    async def _exactly(stream: Stream, size: int) -> bytes:
        data = bytearray(size)
        view, done = memoryview(data), 0
        while done < size:
            received = await stream.receive_into(view[done:])
            if not received:
                raise ConnectionResetError("the node closed the connection")
            done += received
        return bytes(data)
