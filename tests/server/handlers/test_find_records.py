"""FindRecords through the whole server: a lookup ends with its connection, others are served
meanwhile, and it is over when its time is used up. tests/client/test_finding.py has the results.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from mqd.errors import ErrorCode
from mqd.limits import READ_AT_ONCE
from mqd.log.disk import key_chunk, key_search
from mqd.log.disk.key_search import KeySearch
from mqd.protocol.batch_builder import build_batch
from mqd.server.handlers import find_records
from tests.log.support import NOW, FaultyDisk, Inline
from tests.server.rig import Client, Rig, rig

BATCHES = 30
FIND = {"topic": "t", "partition_index": 0, "key": b"absent", "offset": 0}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FaultyDisk, "offload", Inline.offload)
    monkeypatch.setattr(key_chunk, "HEADERS_AT_ONCE", 1)
    monkeypatch.setattr(key_search, "WHOLE_SLICE", 10_000)
    monkeypatch.setattr(find_records, "FIND_SECONDS_MAX", 600.0)


async def answered(client: Client) -> Any:
    """The response of a task."""
    with trio.fail_after(30):
        while not (responses := client.responses()):
            await trio.lowlevel.checkpoint()
    (response,) = responses
    return response


async def filled(node: Rig) -> None:
    node.create("t")
    client = await node.connect()
    for _ in range(BATCHES):
        await client.produce("t", build_batch([(b"k", b"v" * 50)], timestamp=NOW))


async def test_a_lookup_ends_with_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    search = KeySearch._read

    def counted(self, chunk, one, at):  # type: ignore[no-untyped-def]
        read.append(at)
        return search(self, chunk, one, at)

    monkeypatch.setattr(KeySearch, "_read", counted)
    async with rig(tmp_path) as node:
        await filled(node)
        clients = [await node.connect() for _ in range(READ_AT_ONCE + 2)]
        for client in clients:
            client.post("find_records", 0, FIND)
        while len(read) < 5:
            await trio.lowlevel.checkpoint()
        for client in clients:
            client.reset()
        late = await node.connect()
        late.post("find_records", 0, {**FIND, "key": b"late"})
        response = await answered(late)
        assert len(read) < BATCHES * 2
        assert response.is_complete
        assert response.scanned_bytes == node.partition("t").log.size_bytes


async def test_others_are_served_during_a_lookup(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        await filled(node)
        slow, other = await node.connect(), await node.connect()
        slow.post("find_records", 0, FIND)
        while slow.sock.incoming:
            await trio.lowlevel.checkpoint()
        for name in ("list_offsets", "metadata"):
            other.post(name, 1, {"topics": []})
            while not other.responses():
                await trio.lowlevel.checkpoint()
            assert not slow.sock.sent
        assert (await answered(slow)).is_complete


async def test_a_lookup_without_time_makes_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find_records, "FIND_SECONDS_MAX", 0.0)
    async with rig(tmp_path) as node:
        await filled(node)
        client = await node.connect()
        for newest_first, at in ((False, 0), (True, -1)):
            offset, requests, is_complete = at, 0, False
            while not is_complete:
                body = {**FIND, "offset": offset, "newest_first": newest_first}
                client.post("find_records", 0, body)
                response = await answered(client)
                assert response.error_code == ErrorCode.NONE
                offset, is_complete = response.next_offset, response.is_complete
                requests += 1
            assert requests > 1


async def test_a_lookup_ends_when_the_leader_changes(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        await filled(node)
        client = await node.connect()
        client.post("find_records", 0, FIND)
        while client.sock.incoming:
            await trio.lowlevel.checkpoint()
        node.delete("t")
        response = await answered(client)
        assert response.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert response.records == []
