"""The real daemon on loopback: a produce and a fetch end to end, order, parking, restarts, and the
peer listener.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from struct import pack, unpack_from
from typing import Any

import pytest
import trio

from mqd.client.peer import PeerConnection
from mqd.config import StartError
from mqd.errors import ErrorCode
from mqd.protocol.apis import by_name
from mqd.protocol.batch import iterate_batches
from mqd.protocol.record_reader import iterate_records
from mqd.protocol.schema import encode_request_header
from mqd.server.peer_requests import HANDSHAKE, RAFT_MESSAGE
from mqd.server.served_apis import SERVED_TO_PEERS
from tests.nodes import ask, batch, connected, create_topic, fetch, node, one_node_peers, produce


def values(records: Any) -> list[bytes]:
    view = memoryview(records or b"")
    return [
        bytes(record.value or b"")
        for position, size, _ in iterate_batches(view)
        for record in iterate_records(view[position : position + size])
    ]


async def test_produced_records_are_fetched_also_after_a_restart(tmp_path: Path) -> None:
    peers = one_node_peers()
    async with node(tmp_path, peers=peers) as running, connected(running) as connection:
        await create_topic(connection, "t")
        row = await produce(connection, "t", batch(b"a", b"b"))
        assert (row.error_code, row.base_offset) == (0, 0)
        row = await produce(connection, "t", batch(b"c"))
        assert (row.error_code, row.base_offset) == (0, 2)
        found = await fetch(connection, "t", 0)
        assert values(found.records) == [b"a", b"b", b"c"]
        assert found.high_watermark == 3
    async with node(tmp_path, peers=peers) as running, connected(running) as connection:
        found = await fetch(connection, "t", 0)
        assert values(found.records) == [b"a", b"b", b"c"]
        row = await produce(connection, "t", batch(b"d"))
        assert (row.error_code, row.base_offset) == (0, 3)


async def test_a_deleted_topic_is_gone_with_its_records(tmp_path: Path) -> None:
    peers = one_node_peers()
    async with node(tmp_path, peers=peers) as running, connected(running) as connection:
        await create_topic(connection, "t")
        await produce(connection, "t", batch(b"old"))
        response = await ask(
            connection, "delete_topics", 5, {"topic_names": ["t"], "timeout_ms": 10_000}
        )
        assert response.responses[0].error_code == 0
        assert (
            await produce(connection, "t", batch(b"x"))
        ).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await create_topic(connection, "t")
        assert values((await fetch(connection, "t", 0)).records) == []
    async with node(tmp_path, peers=peers) as running, connected(running) as connection:
        assert values((await fetch(connection, "t", 0)).records) == []


async def test_a_produce_completes_a_parked_fetch(tmp_path: Path) -> None:
    async with (
        node(tmp_path) as running,
        connected(running) as consumer,
        connected(running) as producer,
    ):
        await create_topic(producer, "t")
        found: list[list[bytes]] = []

        async def consume() -> None:
            found.append(values((await fetch(consumer, "t", 0, max_wait_ms=30_000)).records))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(consume)
            await trio.testing.wait_all_tasks_blocked(0.01)
            await produce(producer, "t", batch(b"late"))
        assert found == [[b"late"]]


async def test_a_parked_fetch_waits_for_min_bytes_until_max_wait_ms(
    tmp_path: Path,
) -> None:
    async with (
        node(tmp_path) as running,
        connected(running) as consumer,
        connected(running) as producer,
    ):
        await create_topic(producer, "t")
        rows: list[Any] = []

        async def consume() -> None:
            rows.append(await fetch(consumer, "t", 0, max_wait_ms=30_000, min_bytes=250))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(consume)
            await trio.testing.wait_all_tasks_blocked(0.01)
            await produce(producer, "t", batch(b"x" * 50))
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert not rows
            await produce(producer, "t", batch(b"y" * 150))
        assert len(values(rows[0].records)) == 2
        began = trio.current_time()
        assert values((await fetch(consumer, "t", 2, max_wait_ms=50)).records) == []
        assert 0.04 < trio.current_time() - began < 5


async def test_a_request_behind_a_parked_fetch_wakes_it(tmp_path: Path) -> None:
    async with node(tmp_path) as running, connected(running) as connection:
        await create_topic(connection, "t")
        order: list[str] = []

        async def consume() -> None:
            await fetch(connection, "t", 0, max_wait_ms=30_000)
            order.append("fetch")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(consume)
            await trio.testing.wait_all_tasks_blocked(0.01)
            with trio.fail_after(10):
                await ask(connection, "metadata", 9, {"topics": None})
            order.append("metadata")
        assert sorted(order) == ["fetch", "metadata"]


async def test_pipelined_requests_get_their_responses_in_order(tmp_path: Path) -> None:
    async with node(tmp_path) as running, connected(running) as connection:
        await create_topic(connection, "t")
        offsets: list[int] = []

        async def one(number: int) -> None:
            offsets.append((await produce(connection, "t", batch(b"%d" % number))).base_offset)

        async with trio.open_nursery() as nursery:
            for number in range(300):
                nursery.start_soon(one, number)
        assert sorted(offsets) == list(range(300))


async def test_a_topic_exists_for_the_request_behind_its_creation(tmp_path: Path) -> None:
    async with node(tmp_path) as running, connected(running) as connection:
        row: list[Any] = []

        async def use() -> None:
            row.append(await produce(connection, "t", batch(b"x")))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(create_topic, connection, "t")
            await trio.lowlevel.checkpoint()
            nursery.start_soon(use)
        assert row[0].error_code in (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        assert (await produce(connection, "t", batch(b"x"))).error_code == 0


async def test_flush_before_ack_is_acknowledged_after_its_sync(tmp_path: Path) -> None:
    async with node(tmp_path) as running, connected(running) as connection:
        await create_topic(connection, "t", flush_before_ack="true")
        for acks in (1, -1):
            assert (await produce(connection, "t", batch(b"x"), acks=acks)).error_code == 0
        assert len(values((await fetch(connection, "t", 0)).records)) == 2


def private_requests() -> Iterator[bytes]:
    """One request of each API that only nodes may use, in the format of nodes."""
    for name in set(SERVED_TO_PEERS) - {"produce"}:
        api = by_name(name)
        assert api is not None
        version = api.versions[1]
        yield encode_request_header(api, version, 1, "test") + api.encode_request(version, {})
    for api_key in (HANDSHAKE, RAFT_MESSAGE):
        yield pack(">hhih", api_key, 0, 1, -1) + b"\0" * 20


async def test_private_apis_are_not_served_to_clients(tmp_path: Path) -> None:
    async with node(tmp_path) as running:
        keys = []
        for request in private_requests():
            keys.append(unpack_from(">h", request)[0])
            stream = await trio.open_tcp_stream("127.0.0.1", running.port)
            async with stream:
                await stream.send_all(pack(">i", len(request)) + request)
                assert await stream.receive_some(100) == b"", keys[-1]
        assert {56, 62, 63, 67, 32_000, 32_001, 32_002} <= set(keys)


async def test_the_peer_listener_refuses_raft_messages_before_the_handshake(tmp_path: Path) -> None:
    async with node(tmp_path) as running:
        stream = await trio.open_tcp_stream("127.0.0.1", running.peer_port)
        async with stream:
            request = pack(">hhih", 32_001, 0, 1, -1) + b"\0" * 20
            await stream.send_all(pack(">i", len(request)) + request)
            assert await stream.receive_some(100) == b""


async def test_a_data_directory_is_used_by_one_node_at_a_time(tmp_path: Path) -> None:
    async with node(tmp_path):
        with pytest.RaisesGroup(
            pytest.RaisesExc(StartError, match="another mqd process"), flatten_subgroups=True
        ):
            async with node(tmp_path):
                raise AssertionError("started twice")


async def test_a_port_in_use_is_an_error(tmp_path: Path) -> None:
    peers = one_node_peers()
    async with node(tmp_path / "one", peers=peers):
        with pytest.RaisesGroup(
            pytest.RaisesExc(StartError, match="cannot listen on"), flatten_subgroups=True
        ):
            async with node(tmp_path / "two", peers=peers):
                raise AssertionError("two on one port")


async def metadata_errors(connection: PeerConnection, *names: str) -> list[int]:
    response = await ask(
        connection,
        "metadata",
        9,
        {"topics": [{"name": name} for name in names], "allow_auto_topic_creation": False},
    )
    return [topic.error_code for topic in response.topics]


async def test_unknown_topics_and_invalid_names_have_different_errors(tmp_path: Path) -> None:
    async with node(tmp_path) as running, connected(running) as connection:
        assert await metadata_errors(connection, "unknown", "a/b") == [
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
        ]


# -- logs and metadata belong together


async def refusal(directory: Path, peers: Any, **options: str) -> str:
    """The error of a start on `directory`."""
    with pytest.RaisesGroup(pytest.RaisesExc(StartError), flatten_subgroups=True) as refused:
        async with node(
            directory,
            peers=peers,
            options={key.replace("_", "."): value for key, value in options.items()},
        ):
            raise AssertionError("it started")
    error: BaseException = refused.value
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    return str(error)


async def filled(
    directory: Path, peers: Any, *, topics: tuple[str, ...] = ("t",), **options: str
) -> None:
    """A node that ran once, with a record in each topic."""
    async with (
        node(
            directory,
            peers=peers,
            options={key.replace("_", "."): value for key, value in options.items()},
        ) as running,
        connected(running) as connection,
    ):
        for topic in topics:
            await create_topic(connection, topic)
            assert (await produce(connection, topic, batch(b"v"))).error_code == 0


async def test_logs_without_their_metadata_are_refused_and_unchanged(tmp_path: Path) -> None:
    peers = one_node_peers()
    await filled(tmp_path, peers)
    (tmp_path / "metadata").rename(tmp_path / "saved")
    for _ in range(2):
        said = await refusal(tmp_path, peers)
        assert f"the metadata in {tmp_path / 'metadata'} is missing" in said and "restore" in said
    assert (tmp_path / "logs" / "t-0").exists() and not (tmp_path / "metadata").exists()
    (tmp_path / "saved").rename(tmp_path / "metadata")
    async with node(tmp_path, peers=peers) as running, connected(running) as connection:
        assert values((await fetch(connection, "t", 0)).records) == [b"v"]


async def test_logs_of_other_metadata_are_refused_and_unchanged(tmp_path: Path) -> None:
    peers = one_node_peers()
    await filled(tmp_path / "d1", peers)
    logs = str(tmp_path / "d1" / "logs")
    assert "metadata in" in await refusal(tmp_path / "d3", peers, log_dirs=logs)
    await filled(tmp_path / "d2", peers, topics=("other",))
    said = await refusal(tmp_path / "d2", peers, log_dirs=f"{tmp_path / 'd2' / 'logs'},{logs}")
    assert f"{logs} holds partitions" in said and str(tmp_path / "d2" / "log-directories") in said
    async with node(tmp_path / "d1", peers=peers) as running, connected(running) as connection:
        assert values((await fetch(connection, "t", 0)).records) == [b"v"]


async def test_a_log_directory_may_be_added_but_not_removed(tmp_path: Path) -> None:
    peers, one, two = one_node_peers(), tmp_path / "one", tmp_path / "two"
    await filled(tmp_path, peers, log_dirs=str(one))
    await filled(tmp_path, peers, topics=("u", "w"), log_dirs=f"{one},{two}")
    assert list(two.glob("*-0"))
    said = await refusal(tmp_path, peers, log_dirs=str(one))
    assert f"{two} " in said and "not in log.dirs" in said
    two.rename(tmp_path / "moved")
    async with (
        node(tmp_path, peers=peers, options={"log.dirs": f"{one},{tmp_path / 'moved'}"}) as running,
        connected(running) as connection,
    ):
        for topic in ("t", "u", "w"):
            assert values((await fetch(connection, topic, 0)).records) == [b"v"]
    file = tmp_path / "log-directories"
    file.write_text(
        "".join(line for line in file.read_text().splitlines(keepends=True) if "moved" not in line)
    )
    async with (
        node(tmp_path, peers=peers, options={"log.dirs": str(one)}) as running,
        connected(running) as connection,
    ):
        assert [
            len(values((await fetch(connection, topic, 0)).records)) for topic in ("t", "u", "w")
        ].count(0) == len(list((tmp_path / "moved").glob("*-0")))


async def test_older_metadata_is_refused_before_it_deletes_newer_topics(tmp_path: Path) -> None:
    peers = one_node_peers()
    await filled(tmp_path, peers)
    shutil.copytree(tmp_path / "metadata", tmp_path / "backup")
    await filled(tmp_path, peers, topics=("younger",))
    async with node(tmp_path, peers=peers):
        pass
    shutil.rmtree(tmp_path / "metadata")
    shutil.copytree(tmp_path / "backup", tmp_path / "metadata")
    assert "metadata.index=" in await refusal(tmp_path, peers)
    assert (tmp_path / "logs" / "younger-0").exists()


async def test_a_partition_without_its_directory_returns_a_storage_error(
    tmp_path: Path,
) -> None:
    peers = one_node_peers()
    await filled(tmp_path, peers, topics=("t", "u"))
    (tmp_path / "logs" / "t-0").rename(tmp_path / "saved")
    async with node(tmp_path, peers=peers) as running, connected(running) as connection:
        assert (await fetch(connection, "t", 0)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (
            await produce(connection, "t", batch(b"x"))
        ).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert values((await fetch(connection, "u", 0)).records) == [b"v"]
    (tmp_path / "saved").rename(tmp_path / "logs" / "t-0")
    async with node(tmp_path, peers=peers) as running, connected(running) as connection:
        assert values((await fetch(connection, "t", 0)).records) == [b"v"]
