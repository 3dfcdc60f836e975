"""The longest step of a node that ShareFetch and ShareAcknowledge request with few bytes, with an
open session and acquired records.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import trio

from mqd.client.peer import PeerConnection
from mqd.errors import ErrorCode
from mqd.protocol import apis
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.compression import Codec
from mqd.server.share_state import coordinator_key
from mqd.share.ports import ShareKey
from mqd.share.sessions import FINAL_EPOCH
from mqd.share.share_partition import BATCH_RECORDS_MAX
from tests.hostile.machine import on_reference_machine
from tests.hostile.steps import Steps
from tests.hostile.worst_requests import FIRST_TOPIC_ID, ROWS_MAX, VALUES_MAX, worst_requests
from tests.nodes import ask, connected, create_topic, node, produce

SECONDS_MAX = 0.05
SHARE_PARTITION = 2
"""The type of a key in FindCoordinator."""
TRIES = 3
RECORDS = 100_000
"""Records of one batch."""
PARTITIONS = 500
SECONDS = 100
"""The longest wait for a response, while other processes use the cores."""
ACCEPT, RELEASE = 1, 2
GROUP = "g"
WORST = "t"
"""The group and the member of the worst requests."""
OPTIONS = {
    "offsets.topic.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
}

pytestmark = [pytest.mark.slow]


class Session:
    """A share session on a connection."""

    def __init__(self, client: PeerConnection, group_id: str, topic_id: UUID) -> None:
        self._client = client
        self._group_id = group_id
        self.topic_id = topic_id
        self.epoch = 0
        self._is_initialized = False

    async def fetch(self, topics: Any = (), *, forgotten: Any = (), **more: Any) -> Any:
        body = {
            **self._key(),
            "max_wait_ms": 0,
            "min_bytes": 1,
            "max_records": 1,
            "batch_size": 500,
            "topics": topics,
            "forgotten_topics_data": forgotten,
            **more,
        }
        return await self._ask("share_fetch", body)

    async def acquire(self) -> int:
        """Open the session, and acquire records. Returns how many. The end of a session releases
        what the member has from before."""
        await self._initialize()
        self.epoch = FINAL_EPOCH
        await self.fetch()  # releases what the member has
        self.epoch = 0
        await self.fetch()
        self.epoch = -1
        await self.fetch()
        self.epoch = 0
        with trio.fail_after(SECONDS):
            while True:
                found = await self.fetch(self.rows([[]]))
                rows = [row for topic in found.responses for row in topic.partitions]
                acquired = [one for row in rows for one in row.acquired_records]
                if not found.error_code and acquired:
                    return sum(one.last_offset - one.first_offset + 1 for one in acquired)
                self.epoch = 0
                await trio.sleep(0.05)

    async def _initialize(self) -> None:
        """Create the state of partition 0."""
        row = {"partition": 0, "state_epoch": 0, "start_offset": 0}
        topic = {"topic_id": self.topic_id, "partitions": [row]}
        state = {"group_id": self._group_id, "topics": [topic]}
        with trio.fail_after(SECONDS):
            while not self._is_initialized:
                made = await ask(self._client, "initialize_share_group_state", 0, state)
                self._is_initialized = not made.results[0].partitions[0].error_code
                if not self._is_initialized:
                    key = coordinator_key(ShareKey(self._group_id, self.topic_id, 0))
                    body = {"key_type": SHARE_PARTITION, "coordinator_keys": [key]}
                    await ask(self._client, "find_coordinator", 6, body)
                    await trio.sleep(0.05)

    async def acknowledge(self, *batches: dict[str, Any]) -> ErrorCode:
        answer = await self._ask(
            "share_acknowledge", {**self._key(), "topics": self.rows([batches])}
        )
        return ErrorCode(answer.responses[0].partitions[0].error_code)

    def rows(self, partitions: Any) -> Any:
        rows = [
            {"partition_index": index, "acknowledgement_batches": batches}
            for index, batches in enumerate(partitions)
        ]
        return [{"topic_id": self.topic_id, "partitions": rows}]

    def _key(self) -> dict[str, Any]:
        return {
            "group_id": self._group_id,
            "member_id": WORST,
            "share_session_epoch": self.epoch,
        }

    async def _ask(self, name: str, body: dict[str, Any]) -> Any:
        self.epoch += 1
        api = apis.by_name(name)
        assert api is not None
        return await self._client.request(api, body, 2, timeout_s=SECONDS)


def alternating(count: int) -> dict[str, Any]:
    types = [ACCEPT, RELEASE] * (count // 2)
    return {"first_offset": 0, "last_offset": count - 1, "acknowledge_types": types}


@contextmanager
def measured(steps: Steps, what: str, tried: list[float]) -> Iterator[None]:
    steps.begin()
    yield
    tried.append(on_reference_machine(steps.longest, SECONDS_MAX))
    print(f"{what:50} {1000 * tried[-1]:6.1f} ms {steps.of}")


async def test_requests_of_share_sessions(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    failures = []
    async with node(tmp_path, options=OPTIONS) as running, connected(running) as client:
        topic_id = (await prepared(client, GROUP, PARTITIONS)).topic_id
        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        for name in ("types", "refused types", "batches", "partitions", "topics", "forgotten"):
            tried: list[float] = []
            for number in range(TRIES):
                session = Session(client, f"{GROUP}{number}", topic_id)
                await attack(session, name, steps, tried)
                if tried[-1] < SECONDS_MAX:
                    break
            if min(tried) >= SECONDS_MAX:
                failures.append((name, tried, steps.of))
        trio.lowlevel.remove_instrument(steps)
    assert not failures


@pytest.mark.parametrize("api", ["share_fetch", "share_acknowledge"])
async def test_the_worst_requests_of_members(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, api: str
) -> None:
    """With an open session, and records that its member has acquired."""
    caplog.set_level(logging.CRITICAL)
    failures = []
    async with node(tmp_path, options=OPTIONS) as running, connected(running) as client:
        session = await prepared(client, WORST, partitions=10)
        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        for worst in worst_requests(api):
            topic_id = session.topic_id.bytes
            frame = worst.frame.replace(FIRST_TOPIC_ID.bytes, topic_id, 1)
            tried: list[float] = []
            for _ in range(TRIES):
                await session.acquire()
                async with await trio.open_tcp_stream("127.0.0.1", running.port) as stream:
                    with measured(steps, f"{api} {worst.array}", tried), trio.fail_after(SECONDS):
                        await stream.send_all(struct.pack(">i", len(frame)) + frame)
                        await stream.receive_some(65536)
                if tried[-1] < SECONDS_MAX:
                    break
            if min(tried) >= SECONDS_MAX:
                failures.append((worst.array, tried, steps.of))
        trio.lowlevel.remove_instrument(steps)
    assert not failures


async def prepared(client: PeerConnection, group_id: str, partitions: int) -> Session:
    """A topic with one large batch. The group begins with it."""
    await create_topic(client, "t", partitions, max_message_bytes="10000000")
    records = build_batch([(None, b"")] * RECORDS, codec=Codec.GZIP, timestamp=1)
    assert (await produce(client, "t", bytes(records))).error_code == 0
    described = await ask(client, "metadata", 12, {"topics": [{"name": "t"}]})
    return Session(client, group_id, described.topics[0].topic_id)


async def attack(session: Session, name: str, steps: Steps, tried: list[float]) -> None:
    assert await session.acquire() == BATCH_RECORDS_MAX
    with measured(steps, name, tried):
        if name == "types":
            assert await session.acknowledge(alternating(BATCH_RECORDS_MAX)) == ErrorCode.NONE
        elif name == "refused types":
            code = await session.acknowledge(alternating(VALUES_MAX // 2 * 2))
            assert code == ErrorCode.INVALID_REQUEST
        elif name == "batches":
            one = {"acknowledge_types": [ACCEPT]}
            rows = [{**one, "first_offset": n, "last_offset": n} for n in range(ROWS_MAX // 2)]
            assert await session.acknowledge(*rows) == ErrorCode.INVALID_REQUEST
        elif name == "partitions":
            answer = await session.fetch(session.rows([[]] * ROWS_MAX))
            assert len(answer.responses[0].partitions) == ROWS_MAX - 1, "all but the acquired one"
            assert (await session.fetch()).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        elif name == "topics":
            topics = [
                {"topic_id": UUID(int=number + 1), "partitions": [{"partition_index": 0}]}
                for number in range(ROWS_MAX // 2)
            ]
            assert len((await session.fetch(topics)).responses) == ROWS_MAX // 2
        else:
            rows = [{"topic_id": session.topic_id, "partitions": list(range(VALUES_MAX))}]
            assert (await session.fetch(forgotten=rows)).error_code == ErrorCode.NONE
    session.epoch = -1
    await session.fetch()
