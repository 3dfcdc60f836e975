"""The dispatcher: what closes a connection, what delays it, and what a handler's error affects."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from pathlib import Path
from struct import pack
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mqd.errors import ErrorCode, MqError
from mqd.limits import KIB, LARGE_REQUESTS_AT_ONCE, READ_AT_ONCE
from mqd.protocol import apis
from mqd.protocol.hot_fetch_request import decode_fetch_request
from mqd.protocol.hot_produce import decode_produce_request
from mqd.protocol.primitives import pack_unsigned_varint
from mqd.protocol.schema import Api, encode_request_header
from mqd.server.context import CLIENT, PEER
from mqd.server.node_produce import produce
from mqd.server.peer_requests import authenticated
from mqd.server.slices import SLICE_ROWS, finished_in_slices
from tests.log.support import batch
from tests.server.rig import Client, Rig, rig, run_until_idle

PRODUCE = 0
FETCH = 1
LIST_OFFSETS = 2
METADATA = 3
LIST_OFFSETS = 2
OFFSET_FETCH = 9
JOIN_GROUP = 11
ALTER_PARTITION = 56
DESCRIBE_CLIENT_QUOTAS = 48
DESCRIBE_CLUSTER = 60


def head(
    api_key: int, version: int, client_id: bytes | None = b"test", correlation_id: int = 1
) -> bytes:
    return pack(
        ">hhih", api_key, version, correlation_id, -1 if client_id is None else len(client_id)
    ) + (client_id or b"")


UNDECODABLE = {
    "unknown key": head(9999, 0),
    "key of an API that is not served": head(8, 8) + bytes(20),
    "negative key": head(-1, 0),
    "unknown version": head(METADATA, 99) + bytes(20),
    "negative version": head(METADATA, -1) + bytes(20),
    "produce before 3": head(0, 2) + bytes(20),
    "produce after 13": head(0, 14) + bytes(20),
    "fetch before 4": head(1, 3) + bytes(20),
    "fetch after 18": head(1, 19) + bytes(20),
    "client id is not UTF-8": head(METADATA, 9, b"\xff\xfe") + b"\0\1\0\0\0",
    "produce with a client id that is not UTF-8": head(0, 9, b"\xff") + bytes(20),
    "client id beyond the frame": pack(">hhih", METADATA, 9, 1, 500) + bytes(20),
    "client id of a negative length": pack(">hhih", METADATA, 9, 1, -2) + bytes(20),
    "no client id": pack(">hhi", METADATA, 9, 1),
    "half a client id's length": pack(">hhi", METADATA, 9, 1) + b"\0",
    "no body": head(LIST_OFFSETS, 7),
    "tags without an end": head(METADATA, 9) + b"\xff\xff\xff\xff\xff\xff",
    "produce without a body": head(0, 9),
    "produce with tags without an end": head(0, 9) + b"\x05\xff",
    "fetch without a body": head(1, 12),
    "fetch cut off": head(1, 12) + b"\0" + bytes(8),
    "an API of peers": head(67, 0) + bytes(20),
    "a handshake": head(32_000, 0) + bytes(20),
    "a Raft message": head(32_001, 0) + bytes(20),
}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("unknown key", "unknown API key 9999"),
        ("unknown version", "Metadata version 99 is not supported"),
        ("an API of peers", "AllocateProducerIds is not served on the client listener"),
    ],
)
async def test_the_log_names_the_api(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, reason: str
) -> None:
    async with rig(tmp_path) as node:
        bad = await node.connect()
        bad.send_frame(UNDECODABLE[name])
        await run_until_idle()
    assert reason in caplog.text


@pytest.mark.parametrize("name", UNDECODABLE)
async def test_an_invalid_version_closes_only_its_connection(tmp_path: Path, name: str) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        bad, good = await node.connect(), await node.connect()
        good.post("produce", 9, node.produce_body("t", batch(b"a")))
        bad.post("list_offsets", 7, {"topics": []})
        bad.send_frame(UNDECODABLE[name])
        bad.post("produce", 9, node.produce_body("t", batch(b"never")))
        await run_until_idle()
        assert bad.sock.closed
        assert good.responses()[0].responses[0].partition_responses[0].error_code == 0
        assert node.partition("t").log.log_end_offset == 1
        assert (await good.produce("t", batch(b"b"))).base_offset == 1


async def test_client_ids_may_be_null_empty_long_and_change(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        client = await node.connect()
        body = pack(">ii", -1, 0)
        for client_id in (None, b"", "ü".encode() * 1000, None, b"x"):
            client.send_frame(head(LIST_OFFSETS, 1, client_id) + body)
        await run_until_idle()
        assert len(client.frames()) == 5


async def test_a_produce_of_a_client_whose_id_is_not_utf_8_is_not_appended(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        api = apis.by_name("produce")
        assert api is not None
        client.send_frame(
            head(0, 8, b"\xff\xfe")
            + api.encode_request(8, node.produce_body("t", batch(b"a"), version=8))
        )
        await run_until_idle()
        assert client.sock.closed
        assert node.partition("t").log.log_end_offset == 0


@pytest.mark.parametrize(
    ("api", "version", "decode"),
    [("produce", 9, decode_produce_request), ("fetch", 12, decode_fetch_request)],
)
async def test_tags_in_the_header_of_a_hot_request_are_skipped(
    tmp_path: Path, api: str, version: int, decode: Any
) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        declared = apis.by_name(api)
        assert declared is not None
        request = (
            node.produce_body("t", batch(b"a")) if api == "produce" else node.fetch_body("t", 0)
        )
        body = declared.encode_request(version, request)
        header = encode_request_header(declared, version, 1, "test")
        assert header[-1] == 0
        client.send_frame(header[:-1] + b"\x01\x05\x03abc" + body)
        await run_until_idle()
        assert len(client.frames()) == 1
        assert decode(memoryview(body), 0, len(body), version)


# -- access by listener


async def test_peers_are_served_more_apis(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        peer, client = await node.connect(PEER), await node.connect(CLIENT)
        received: list[tuple[str, bytes]] = []
        node.raft.begin_handshake = lambda address: SimpleNamespace(
            node_id=2, incarnation=None, refusal=None
        )

        def receive_handshake(handshake: Any, body: bytes, correlation_id: int) -> bytes:
            received.append(("hello", bytes(body)))
            return b""

        node.raft.receive_handshake = receive_handshake
        node.raft.receive = lambda node_id, body, incarnation: received.append(
            (str(node_id), bytes(body))
        )
        peer.send_frame(head(32_000, 0, None) + b"I am 2")
        peer.send_frame(head(32_001, 0) + b"vote")
        await run_until_idle()
        assert received == [("hello", b"I am 2"), ("2", b"vote")]
        assert not peer.sock.closed
        client.send_frame(head(32_000, 0, None) + b"I am 2")
        await run_until_idle()
        assert client.sock.closed
        assert len(received) == 2


# -- responses of whole requests


async def test_before_the_handshake_only_api_versions_is_served(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        node.raft.begin_handshake = lambda address: SimpleNamespace(
            node_id=2, incarnation=None, refusal=None
        )
        node.raft.receive_handshake = lambda handshake, body, correlation_id: b""
        client = await node.connect(PEER)
        client.post("api_versions", 0, {})
        await run_until_idle()
        assert len(client.responses()) == 1
        requests: list[tuple[str, int, Mapping[str, Any]]] = [
            ("list_offsets", 1, {"topics": []}),
            ("produce", 9, node.produce_body("t", batch(b"x"))),
            ("fetch", 12, node.fetch_body("t", 0)),
            ("broker_heartbeat", 1, {"broker_id": 2}),
        ]
        for name, version, body in requests:
            client = await node.connect(PEER)
            client.post(name, version, body)
            await run_until_idle()
            assert client.sock.closed and not client.sock.sent
        peer = await node.connect(PEER)
        peer.send_frame(head(32_000, 0, None) + b"I am 2")
        assert (await peer.request(*requests[0])).topics == []


@pytest.mark.parametrize("version", [4, 12, 17])
async def test_fetches_of_consumers_are_not_served_to_peers(tmp_path: Path, version: int) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        peer = await peer_of(node)
        received = {row.api_key for row in (await peer.request("api_versions", 0, {})).api_keys}
        assert {PRODUCE, FETCH, ALTER_PARTITION} <= received
        peer.post("fetch", version, node.fetch_body("t", 0, version=version))
        await run_until_idle()
        assert peer.sock.closed and not peer.sock.sent


async def test_peers_produce_transactions_only(tmp_path: Path) -> None:
    """Nothing would fence other batches."""
    async with rig(tmp_path) as node:
        node.create("t")
        peer = await peer_of(node)
        response = await peer.request("produce", 9, node.produce_body("t", batch(b"x")))
        [row] = response.responses[0].partition_responses
        assert ErrorCode(row.error_code) is ErrorCode.INVALID_RECORD
        assert node.partition("t").log.log_end_offset == 0


def test_batches_of_nodes_are_copied_out_of_the_receive_buffer() -> None:
    """The work begins when the buffer has other bytes."""
    api = apis.by_key(PRODUCE)
    assert api is not None
    records = bytes(batch(b"x"))
    partition = {"index": 0, "records": records}
    topic = {"name": "t", "partition_data": [partition]}
    body = {"transactional_id": "x", "acks": -1, "timeout_ms": 1, "topic_data": [topic]}
    buffer = bytearray(api.encode_request(11, body))
    request = api.decode_request(11, memoryview(buffer))
    work = produce(SimpleNamespace(), 11, request)  # type: ignore[arg-type]
    buffer[:] = bytes(len(buffer))
    assert request.topic_data[0].partition_data[0].records == records
    work.close()


async def peer_of(node: Rig) -> Client:
    """A connection of node 2."""
    peer = await node.connect(PEER)
    authenticated(next(one for one in node.server._connections if one.sock is peer.sock), 2)
    return peer


def replaced(node: Rig, api_key: int, handle: Any, *, failed: Any = None) -> None:
    """Replace the handler of an API."""
    for handlers in node.server.dispatcher._handlers.values():
        handler = handlers[api_key]
        handler.handle, handler.failed = handle, failed


def described(cluster: str) -> Mapping[str, Any]:
    return {"error_code": 0, "cluster_id": cluster, "brokers": []}


async def metadata_requested(client: Client) -> None:
    client.post("describe_cluster", 0, {})
    await run_until_idle()


def failed(request: Any, error: MqError) -> Mapping[str, Any]:
    return {"error_code": int(error.code), "error_message": error.message}


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_refused_request_gets_a_response_in_its_format(
    tmp_path: Path, is_async: bool
) -> None:
    def refuse(context: Any, request: Any) -> None:
        raise MqError(ErrorCode.POLICY_VIOLATION, "no")

    async def refuse_later(context: Any, request: Any) -> None:
        refuse(context, request)

    async with rig(tmp_path) as node:
        replaced(node, DESCRIBE_CLUSTER, refuse_later if is_async else refuse, failed=failed)
        client = await node.connect()
        await metadata_requested(client)
        (response,) = client.responses()
        assert (response.error_code, response.error_message) == (ErrorCode.POLICY_VIOLATION, "no")


# -- coroutines


class Gate:
    """A handler that waits for the test, and counts the calls inside it."""

    def __init__(self) -> None:
        self.opened = trio.Event()
        self.inside = 0

    async def handle(self, context: Any, request: Any) -> Mapping[str, Any]:
        self.inside += 1
        await self.opened.wait()
        return described("late")


async def test_a_coroutine_delays_only_its_own_connection(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        gate = Gate()
        replaced(node, DESCRIBE_CLUSTER, gate.handle)
        held, free = await node.connect(), await node.connect()
        await metadata_requested(held)
        held.post("produce", 9, node.produce_body("t", batch(b"behind")))
        held.post("describe_cluster", 0, {})
        await run_until_idle()
        assert (gate.inside, held.responses(), node.partition("t").log.log_end_offset) == (1, [], 0)
        assert (await free.produce("t", batch(b"free"))).base_offset == 0
        gate.opened.set()
        await run_until_idle()
        first, second, third = held.responses()
        assert (first.cluster_id, third.cluster_id) == ("late", "late")
        assert second.responses[0].partition_responses[0].base_offset == 1


async def test_a_task_behind_a_parked_produce_responds_after_it(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t", flush_before_ack="true")
        gate = Gate()
        gate.opened.set()
        replaced(node, DESCRIBE_CLUSTER, gate.handle)
        client = await node.connect()
        client.post("produce", 9, node.produce_body("t", batch(b"a")))
        await metadata_requested(client)
        client.post("list_offsets", 1, {"topics": []})
        await run_until_idle()
        assert (gate.inside, client.responses()) == (1, [])
        log = node.partition("t").log
        log.on_synced(1)
        node.replica.on_durable(log)
        await run_until_idle()
        assert len(client.responses()) == 3


async def test_a_client_that_disconnects_during_its_request_leaves_nothing(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as node:
        gate = Gate()
        replaced(node, DESCRIBE_CLUSTER, gate.handle)
        client = await node.connect()
        await metadata_requested(client)
        client.reset()
        await run_until_idle()
        assert client.sock.closed
        gate.opened.set()
        await run_until_idle()
        assert not client.sock.sent
        assert node.server.statistics().connections == 0


class Work(Gate):
    """The same; it also counts the calls that have ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = 0

    async def handle(self, context: Any, request: Any) -> Mapping[str, Any]:
        try:
            return await super().handle(context, request)
        finally:
            self.ended += 1


async def test_concurrent_reading_requests_are_bounded(tmp_path: Path) -> None:
    """The rows of each response may take megabytes, and a connection costs its client nothing."""
    async with rig(tmp_path) as node:
        work = Work()
        replaced(node, DESCRIBE_CLUSTER, work.handle)
        clients = [await node.connect() for _ in range(READ_AT_ONCE + 3)]
        for client in clients:
            await metadata_requested(client)
        assert work.inside == READ_AT_ONCE
        work.opened.set()
        await run_until_idle()
        assert [len(client.responses()) for client in clients] == [1] * len(clients)


@pytest.mark.parametrize(
    ("topics", "at_once"),
    [
        (None, READ_AT_ONCE),
        ([{"name": "t", "partition_indexes": list(range(501))}], READ_AT_ONCE),
        ([{"name": "t", "partition_indexes": [0]}], READ_AT_ONCE + 3),
    ],
    ids=["all offsets", "501 partitions", "one partition"],
)
async def test_concurrent_offset_fetches_of_many_rows_are_bounded(
    tmp_path: Path, topics: list[dict[str, Any]] | None, at_once: int
) -> None:
    async with rig(tmp_path) as node:
        work = Gate()

        async def handle(context: Any, request: Any) -> Mapping[str, Any]:
            await work.handle(context, request)
            return {"groups": []}

        replaced(node, OFFSET_FETCH, handle)
        clients = [await node.connect() for _ in range(READ_AT_ONCE + 3)]
        for client in clients:
            client.post("offset_fetch", 8, {"groups": [{"group_id": "g", "topics": topics}]})
            await run_until_idle()
        assert work.inside == at_once
        work.opened.set()
        await run_until_idle()
        assert [len(client.responses()) for client in clients] == [1] * len(clients)


async def test_a_list_of_configured_resources_waits_for_its_turn(tmp_path: Path) -> None:
    """A request of 16 bytes may list 10,000 names of groups, 40 MB."""
    async with rig(tmp_path) as node:
        work = Gate()

        async def handle(context: Any, request: Any) -> Mapping[str, Any]:
            await work.handle(context, request)
            return {"entries": []}

        replaced(node, DESCRIBE_CLIENT_QUOTAS, handle)
        for _ in range(READ_AT_ONCE):
            (await node.connect()).post("describe_client_quotas", 1, {"components": []})
        client = await node.connect()
        client.post("list_config_resources", 1, {"resource_types": []})
        await run_until_idle()
        assert (work.inside, client.responses()) == (READ_AT_ONCE, [])
        work.opened.set()
        await run_until_idle()
        assert len(client.responses()) == 1


async def test_work_for_a_connection_ends_when_it_closes(tmp_path: Path) -> None:
    """Also work that waits for its turn: a client that connects and disconnects must not leave work
    behind.
    """
    async with rig(tmp_path) as node:
        work = Work()
        replaced(node, DESCRIBE_CLUSTER, work.handle)
        clients = [await node.connect() for _ in range(READ_AT_ONCE + 3)]
        for client in clients:
            await metadata_requested(client)
        for client in clients:
            client.reset()
        await run_until_idle()
        assert (work.inside, work.ended) == (READ_AT_ONCE, READ_AT_ONCE)
        work.opened.set()
        late = await node.connect()
        await metadata_requested(late)
        assert len(late.responses()) == 1


async def test_a_closed_connection_ends_its_reading_request(tmp_path: Path) -> None:
    """The client closes while the connection is not read, because a request is in progress."""
    async with rig(tmp_path) as node:
        work = Work()
        replaced(node, DESCRIBE_CLUSTER, work.handle)
        clients = [await node.connect() for _ in range(READ_AT_ONCE + 3)]
        for client in clients:
            await metadata_requested(client)
        for client in clients:
            client.half_close()
        await run_until_idle()
        assert (work.inside, work.ended) == (READ_AT_ONCE, READ_AT_ONCE)
        assert all(client.sock.closed for client in clients)
        late = await node.connect()
        work.opened.set()
        await metadata_requested(late)
        assert len(late.responses()) == 1


async def test_a_change_is_carried_out_although_the_client_has_closed(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        work = Work()
        replaced(node, JOIN_GROUP, work.handle)
        client = await node.connect()
        client.post("join_group", 5, {"group_id": "g"})
        client.half_close()
        await run_until_idle()
        assert (work.inside, work.ended, client.sock.closed) == (1, 0, False)


async def test_metadata_does_not_wait_for_lookups_by_time(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        lookup, metadata = Gate(), Gate()
        replaced(node, LIST_OFFSETS, lookup.handle)
        replaced(node, DESCRIBE_CLUSTER, metadata.handle)
        for _ in range(READ_AT_ONCE + 1):
            client = await node.connect()
            client.post("list_offsets", 1, {"topics": []})
        await run_until_idle()
        other = await node.connect()
        await metadata_requested(other)
        assert (lookup.inside, metadata.inside) == (READ_AT_ONCE, 1)


async def test_long_lookups_give_way_to_waiting_ones(tmp_path: Path, mock_clock: MockClock) -> None:
    """A request that looks up thousands of times holds its place for a quarter of a second."""
    async with rig(tmp_path) as node:
        begun: list[int] = []

        async def handle(context: Any, request: Any) -> Mapping[str, Any]:
            number = len(begun)
            begun.append(number)

            def work() -> Generator[int, None, None]:
                while number < READ_AT_ONCE and len(begun) <= READ_AT_ONCE:
                    mock_clock.jump(0.1)
                    yield SLICE_ROWS

            await finished_in_slices(work())
            return {"topics": []}

        replaced(node, LIST_OFFSETS, handle)
        clients = [await node.connect() for _ in range(READ_AT_ONCE + 1)]
        for client in clients:
            client.post("list_offsets", 1, {"topics": []})
        await run_until_idle()
        assert [len(client.responses()) for client in clients] == [1] * len(clients)


def large_join(padding: int = 8 * KIB) -> bytes:
    """A JoinGroup with an unknown tagged field."""
    api = apis.by_name("join_group")
    assert api is not None
    field = b"\x01\x09" + pack_unsigned_varint(padding) + bytes(padding)
    body = api.encode_request(9, {"group_id": "g", "protocols": [{"name": "r", "metadata": b"m"}]})
    return encode_request_header(api, 9, 1, "test") + body[:-1] + field


class Joining(Gate):
    """A JoinGroup that waits for the other members."""

    async def handle(self, context: Any, request: Any) -> Mapping[str, Any]:
        self.inside += 1
        context.waits()
        await self.opened.wait()
        return {"error_code": 0, "protocol_name": "r"}


async def test_large_joins_wait_for_a_slot_to_be_decoded(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        work = Work()
        replaced(node, JOIN_GROUP, work.handle)
        clients = [await node.connect() for _ in range(LARGE_REQUESTS_AT_ONCE + 3)]
        for client in clients:
            client.send_frame(large_join())
        await run_until_idle()
        assert work.inside == LARGE_REQUESTS_AT_ONCE
        for client in clients[:2]:
            client.reset()
        work.opened.set()
        await run_until_idle()
        assert [len(client.frames()) for client in clients[2:]] == [1] * (len(clients) - 2)
        assert (
            node.server.memory.request_pool(CLIENT).bytes
            == node.server.memory.request_pool(CLIENT).leaving
            == 0
        )


async def test_joins_that_wait_for_members_hold_no_slot_and_no_frame(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        joining = Joining()
        replaced(node, JOIN_GROUP, joining.handle)
        clients = [await node.connect() for _ in range(LARGE_REQUESTS_AT_ONCE + 3)]
        for client in clients:
            client.send_frame(large_join())
        await run_until_idle()
        assert joining.inside == len(clients)
        assert node.server.memory.request_pool(CLIENT).bytes == 0
        joining.opened.set()
        await run_until_idle()
        assert [len(client.frames()) for client in clients] == [1] * len(clients)


# -- bugs in mqd


@pytest.mark.plants_a_bug
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_bug_in_a_handler_closes_one_connection(
    tmp_path: Path, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(context: Any, request: Any) -> Mapping[str, Any]:
        raise KeyError("a bug")

    async def broken_later(context: Any, request: Any) -> Mapping[str, Any]:
        return broken(context, request)

    async with rig(tmp_path) as node:
        replaced(node, DESCRIBE_CLUSTER, broken_later if is_async else broken)
        bad, good = await node.connect(), await node.connect()
        await metadata_requested(bad)
        assert bad.sock.closed
        assert "bug in a handler" in caplog.text
        assert (await good.request("list_offsets", 1, {"topics": []})) is not None


@pytest.mark.plants_a_bug
@pytest.mark.parametrize("api", ["produce", "fetch"])
@pytest.mark.parametrize("is_resumed", [False, True])
async def test_a_bug_on_the_hot_path_closes_one_connection(
    tmp_path: Path,
    api: str,
    is_resumed: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*arguments: Any) -> None:
        raise KeyError("a bug")

    async with rig(tmp_path) as node:
        node.create("t")
        bad, good = await node.connect(), await node.connect()
        if is_resumed:  # by a request whose handler is a task
            bad.post(
                "metadata",
                12,
                {
                    "topics": [{"name": f"n{row}"} for row in range(2000)],
                    "allow_auto_topic_creation": False,
                },
            )
        with monkeypatch.context() as patch:
            patch.setattr(node.server.dispatcher, f"_{api}", broken)
            body = node.produce_body("t", batch()) if api == "produce" else node.fetch_body("t", 0)
            bad.post(api, 9 if api == "produce" else 12, body)
            await run_until_idle()
        assert bad.sock.closed and node.server.statistics().bugs == 1
        assert "bug in a handler" in caplog.text
        assert (await good.produce("t", batch())).error_code == 0


async def test_a_bug_in_a_core_stops_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any, **options: Any) -> None:
        raise KeyError("a bug")

    with pytest.RaisesGroup(pytest.RaisesExc(KeyError), flatten_subgroups=True):
        async with rig(tmp_path) as node:
            node.create("t")
            client = await node.connect()
            monkeypatch.setattr("mqd.log.manager.writing.plan_append", broken)
            client.post("produce", 9, node.produce_body("t", batch()))
            await run_until_idle()


async def survives(tmp_path: Path, handle: Any) -> bool:
    """Whether the node still serves other connections after one connection met this handler."""
    try:
        async with rig(tmp_path) as node:
            replaced(node, DESCRIBE_CLUSTER, handle)
            bad, good = await node.connect(), await node.connect()
            await metadata_requested(bad)
            return (
                bad.sock.closed
                and (await good.request("list_offsets", 1, {"topics": []})) is not None
            )
    except BaseExceptionGroup:
        return False


@pytest.mark.plants_a_bug
@pytest.mark.parametrize("mistake", ["unfit response", "refusal without a shape"])
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_response_that_cannot_be_encoded_closes_one_connection(
    tmp_path: Path, is_async: bool, mistake: str
) -> None:
    def unfit(context: Any, request: Any) -> Mapping[str, Any]:
        if mistake == "unfit response":
            return {"error_code": 1 << 40, "brokers": []}
        raise MqError(ErrorCode.POLICY_VIOLATION, "no")

    async def unfit_later(context: Any, request: Any) -> Mapping[str, Any]:
        return unfit(context, request)

    assert await survives(tmp_path, unfit_later if is_async else unfit)


# -- counting


async def test_each_request_counts_once(tmp_path: Path, mock_clock: MockClock) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client, producer = await node.connect(), await node.connect()
        for _ in range(2):
            client.post("fetch", 12, node.fetch_body("t", 0, session_epoch=0, max_wait_ms=10_000))
        await run_until_idle()
        await producer.produce("t", batch(b"a"))
        assert len(client.responses()) == 2
        assert node.server.statistics().requests == 3


# -- out of contact with the controller


async def test_a_node_without_contact_disconnects_the_client_after_its_metadata(
    tmp_path: Path,
) -> None:
    """A client that stays connected here would not search for the leader on another node."""
    async with rig(tmp_path) as node:
        node.create("t")
        client, peer, other = await node.connect(), await node.connect(PEER), await node.connect()
        peer_connection = next(one for one in node.server._connections if one.listener == PEER)
        authenticated(peer_connection, 2)
        node.replica.set_in_contact(False)
        client.post("produce", 9, node.produce_body("t", batch(b"refused")))
        client.post("metadata", 9, {"topics": [{"name": "t"}]})
        client.post("produce", 9, node.produce_body("t", batch(b"lost")))
        await run_until_idle()
        refused, metadata = client.responses()
        assert (
            refused.responses[0].partition_responses[0].error_code
            == ErrorCode.NOT_LEADER_OR_FOLLOWER
        )
        assert metadata.topics[0].partitions[0].leader_id == -1
        assert client.sock.closed
        assert (await peer.request("metadata", 9, {"topics": []})).brokers
        assert (await other.request("describe_cluster", 1, {})).brokers
        assert not peer.sock.closed
        assert not other.sock.closed
        node.replica.set_in_contact(True)
        assert (await other.request("metadata", 9, {"topics": [{"name": "t"}]})).topics[
            0
        ].partitions[0].leader_id == 1
        assert (await other.produce("t", batch(b"a"))).error_code == 0


async def test_the_connection_closes_after_a_queued_response(
    tmp_path: Path,
) -> None:
    """Whole frames in one piece after Metadata are dropped with the connection, whether they were
    held or not.
    """
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        client.sock.room = 0
        node.replica.set_in_contact(False)
        for _ in range(3):
            client.post("metadata", 9, {"topics": [{"name": "t"}]})
        await run_until_idle()
        assert not client.sock.closed
        client.take(1 << 20)
        await run_until_idle()
        assert len(client.responses()) == 1
        assert client.sock.closed


async def test_a_client_of_a_node_without_contact_stays_longer_each_time(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    """Clients wait longer after each lost connection, and the other nodes may have metadata that is
    no newer.
    """
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        mock_clock.jump(1)
        node.replica.set_in_contact(False)
        lost_at = node.clock.monotonic()
        stays = []
        while node.clock.monotonic() - lost_at < 40:
            came_at = node.clock.monotonic()
            while not client.sock.closed:
                await client.request("metadata", 9, {"topics": []})
                left_at = node.clock.monotonic()
                mock_clock.jump(0.125)
            stays.append((came_at - lost_at, left_at - came_at))
            client = await node.connect()
        assert stays[0] == (0.0, 0.0)
        assert all(stay == pytest.approx(max(1, came), abs=0.2) for came, stay in stays[1:]), stays
        assert len(stays) == 7


class DecodingsOfPasses(trio.abc.Instrument):
    """How many large requests begin to be decoded in each pass of the event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: list[int] = [0]
        decode = Api.decode_request_in_slices

        def counted(*arguments: Any) -> Any:
            self.counts[-1] += 1
            return decode(*arguments)

        monkeypatch.setattr(Api, "decode_request_in_slices", counted)

    def before_io_wait(self, timeout: float) -> None:
        self.counts.append(0)


async def test_one_large_request_begins_in_each_pass_of_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where several get their places at once, because others end."""
    connections = 2 * LARGE_REQUESTS_AT_ONCE
    async with rig(tmp_path) as node:
        clients = [await node.connect() for _ in range(connections)]
        decodings = DecodingsOfPasses(monkeypatch)
        trio.lowlevel.add_instrument(decodings)
        for client in clients:
            keys = [f"{number:0100}" for number in range(100)]
            client.post("find_coordinator", 4, {"key_type": 9, "coordinator_keys": keys})
        await run_until_idle()
        trio.lowlevel.remove_instrument(decodings)
        assert [len(client.responses()) for client in clients] == [1] * connections
    assert sum(decodings.counts) == connections
    assert max(decodings.counts) == 1
