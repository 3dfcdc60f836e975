"""Steps of the event loop that no request of test_longest_turn.py causes: large fetches of
followers, batches whose records the broker reads, and metadata snapshots that a leader sends.

`-s` prints them. Times are CPU time of the event loop; a step above the bound has three tries.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
import trio

from chaos.node import free_port
from mqd.config import NodeConfig
from mqd.controller.create_partitions import (
    CreatePartitions,
    MorePartitions,
    decide_create_partitions,
)
from mqd.controller.create_topics import CreateTopics, decide_create_topics
from mqd.controller.decision_options import DecisionOptions
from mqd.controller.image import MetadataImage, PartitionImage, TopicImage
from mqd.controller.machine import MetadataMachine
from mqd.controller.snapshot import encode_snapshot
from mqd.io.clock import SystemClock
from mqd.io.disk import OsDisk
from mqd.io.entropy import RandomEntropy
from mqd.io.net import OsNetwork
from mqd.limits import (
    INSPECTED_BYTES_MAX,
    INSPECTED_BYTES_PER_RECORD,
    PARTITIONS_PER_REQUEST_MAX,
    PRODUCERS_PER_PARTITION_MAX,
    RAFT_SNAPSHOT_CHUNK_BYTES,
)
from mqd.log.producer_expiry import expire, forget_oldest
from mqd.log.producers import Producers
from mqd.node.publisher import MetadataPublisher
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.compression import Codec
from mqd.protocol.record_reader import Record
from mqd.raft import formats
from mqd.raft.codec import InstallSnapshot, encode_message
from mqd.raft.service import RaftService
from mqd.server.handlers.list_offsets import MAX_TIMESTAMP
from mqd.types import NodeId
from tests.controller.cluster import new_topic, with_brokers
from tests.hostile.machine import longest_step, on_reference_machine
from tests.hostile.steps import Steps
from tests.hostile.test_longest_assignment import timed
from tests.log.support import NOW, batch, wait_until
from tests.nodes import node, one_node_peers
from tests.server.rig import ME, OTHER, Client, rig, run_until_idle
from tests.server.test_follower_fetch import Follower, replicated
from tests.tls_files import write_texts

SECONDS_MAX = 0.05
FOLLOWED_SECONDS_MAX = 0.01
"""For a fetch of fewer partitions than clusters have, so that the test is short."""

TRIES = 3
HELLO_BYTES = 131_000
HANDSHAKE_SECONDS_MAX = 0.02
NEW_PARTITIONS_SECONDS_MAX = 0.02
INSPECTION_SECONDS_MAX = 0.02
PRODUCERS_SECONDS_MAX = 0.015
DESCRIBED_SECONDS_MAX = 0.018
"""Half of it frees the rows of the response."""
WALKED_BATCHES = 60_000
LOOKUP_SECONDS_MAX = 0.01
PARTITIONS = 2_000
SNAPSHOT_TOPICS, TOPIC_PARTITIONS = 300, 100

pytestmark = [pytest.mark.slow]


async def test_the_first_fetch_of_a_follower(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        replicated(node, partitions=PARTITIONS, isr=(ME, OTHER))
        await node.publisher._drain(node.image)
        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        tried = []
        for _ in range(TRIES):
            follower = await Follower.connect(node)
            body = follower.body(*(("t", index, 0) for index in range(PARTITIONS)))
            steps.begin()
            follower.client.post("fetch", 17, body)
            await run_until_idle()
            tried.append(on_reference_machine(steps.longest))
            response: Any = follower.response()
            assert sum(len(topic.partitions) for topic in response.responses) == PARTITIONS
        trio.lowlevel.remove_instrument(steps)
    print(f"first fetch of a follower, {PARTITIONS} partitions: {1000 * min(tried):.1f} ms")
    assert min(tried) < FOLLOWED_SECONDS_MAX, tried


# -- a TLS handshake


async def test_a_client_hello_in_records_of_one_byte(tmp_path: Path) -> None:
    """Before any login, a client may send 131 KB so."""
    files, peers, secure = write_texts(tmp_path), one_node_peers(), free_port()
    options = {
        "listeners": f"IN://127.0.0.1:{peers.nodes[1].port},OUT://127.0.0.1:{secure}",
        "listener.security.protocol.map": "IN:PLAINTEXT,OUT:SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(files["node"]),
    }
    hello = b"\x01" + HELLO_BYTES.to_bytes(3, "big") + bytes(HELLO_BYTES)
    sent = b"".join(b"\x16\x03\x01\0\x01%c" % byte for byte in hello)
    tried = []
    async with node(tmp_path / "data", peers=peers, options=options):
        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        for _ in range(TRIES):
            steps.begin()
            async with await trio.open_tcp_stream("127.0.0.1", secure) as stream:
                with suppress(trio.BrokenResourceError), trio.fail_after(30):
                    await stream.send_all(sent)
                    await stream.receive_some(100)
            tried.append(on_reference_machine(steps.longest, HANDSHAKE_SECONDS_MAX))
            if tried[-1] < HANDSHAKE_SECONDS_MAX:
                break
        trio.lowlevel.remove_instrument(steps)
    print(f"ClientHello of {HELLO_BYTES} bytes in tiny records: {1000 * min(tried):.1f} ms")
    assert min(tried) < HANDSHAKE_SECONDS_MAX, (tried, steps.of)


# -- new partitions


@pytest.mark.parametrize("assigned", [False, True])
def test_the_largest_validation_of_new_partitions(assigned: bool) -> None:
    """CreateTopics and CreatePartitions, with three replicas for each partition."""
    count = PARTITIONS_PER_REQUEST_MAX
    image, options = with_brokers(1, 2, 3).image, DecisionOptions()
    nodes = (NodeId(1), NodeId(2), NodeId(3))
    rows = [PartitionImage(nodes[0], 0, 0, nodes, nodes)]
    image.insert_topic(TopicImage("grown", UUID(int=1), rows))
    lists = tuple((nodes[n % 3], nodes[(n + 1) % 3], nodes[(n + 2) % 3]) for n in range(count))
    topic = new_topic("t", count, 3)
    if assigned:
        placed = tuple(enumerate(lists))
        topic = topic._replace(partitions=-1, replication_factor=-1, assignments=placed)
    create = CreateTopics((topic,), 1, 3, validate_only=True)
    more = MorePartitions("grown", 1 + count, lists if assigned else None)
    grow = CreatePartitions((more,), validate_only=True)

    def run() -> list[float]:
        return [
            timed(lambda: checked.extend(decide_create_topics(image, create, options).reply)),
            timed(lambda: checked.extend(decide_create_partitions(image, grow, options).reply)),
        ]

    checked: list[Any] = []
    longest = longest_step(run, NEW_PARTITIONS_SECONDS_MAX)
    print(f"validation of {count} partitions, assigned={assigned}: {1000 * longest:.1f} ms")
    assert not any(row.error_code for row in checked)
    assert longest < NEW_PARTITIONS_SECONDS_MAX


# -- metadata snapshots


def large_image() -> MetadataImage:
    image, nodes = MetadataImage(), (NodeId(1), NodeId(2), NodeId(3))
    for number in range(SNAPSHOT_TOPICS):
        rows = [
            PartitionImage(nodes[index % 3], index, index + number, nodes, nodes)
            for index in range(TOPIC_PARTITIONS)
        ]
        image.insert_topic(TopicImage(f"topic-{number}", UUID(int=number + 1), rows))
    image.index = 100
    return image


def published(machine: MetadataMachine) -> MetadataPublisher:
    """A node's work on its metadata, without its logs."""

    def nothing(*arguments: object) -> None: ...

    assignments = SimpleNamespace(apply=nothing, configure=nothing)
    replica: Any = SimpleNamespace(assignments=assignments, brokers_changed=nothing)
    publisher = MetadataPublisher(NodeId(9), NodeConfig.load(None, {}, {}), replica, active=True)
    machine.subscribe(publisher)
    return publisher


async def until(holds: Callable[[], bool]) -> None:
    with trio.fail_after(50):
        while not holds():  # the service has no event for it  # noqa: ASYNC110
            await trio.sleep(0.01)


async def test_a_metadata_snapshot_of_the_leader(tmp_path: Path) -> None:
    """On an observer, which continues to receive messages of its leader."""
    machine = MetadataMachine()
    publisher = published(machine)
    image = large_image()
    data = formats.encode_snapshot(formats.Snapshot("c", image.index, 1, encode_snapshot(image)))
    raft = RaftService(
        node_id=2,
        voters={1: ("127.0.0.1", 1)},
        observers={2: ("127.0.0.1", 2)},
        cluster_id="c",
        directory=tmp_path,
        disk=OsDisk(),
        clock=SystemClock(),
        entropy=RandomEntropy(),
        network=OsNetwork(),
        machine=machine,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(raft.run)
        nursery.start_soon(publisher.run, machine.image)
        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        steps.begin()
        for offset in range(0, len(data), RAFT_SNAPSHOT_CHUNK_BYTES):
            chunk = data[offset : offset + RAFT_SNAPSHOT_CHUNK_BYTES]
            raft.receive(
                1, encode_message(InstallSnapshot(1, image.index, 1, len(data), offset, chunk))
            )
        await until(lambda: raft.statistics().snapshots_installed == 1 and not publisher.pending)
        trio.lowlevel.remove_instrument(steps)
        nursery.cancel_scope.cancel()
    assert encode_snapshot(machine.image) == encode_snapshot(image)
    print(
        f"metadata snapshot, {SNAPSHOT_TOPICS * TOPIC_PARTITIONS} partitions: "
        f"{1000 * steps.longest:.1f} ms {steps.of}"
    )
    assert on_reference_machine(steps.longest) < SECONDS_MAX, (steps.longest, steps.of)


# -- batches whose records the broker reads


async def the_response(client: Client) -> Any:
    """The response to one request, after the work of a thread."""
    found: list[Any] = []

    def has_come() -> bool:
        found.extend(client.responses())
        return bool(found)

    await wait_until(has_come)
    (response,) = found
    return response


async def test_a_large_batch_for_a_compacted_topic(tmp_path: Path) -> None:
    """The maximum number of records: 30 bytes each, compressed."""
    records = build_batch(
        [(b"k", b"v" * 20)] * (INSPECTED_BYTES_MAX // INSPECTED_BYTES_PER_RECORD),
        codec=Codec.GZIP,
        timestamp=NOW,
    )
    async with rig(tmp_path) as node:
        node.create("t", cleanup_policy="compact")
        client = await node.connect()
        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        tried = []
        for _ in range(TRIES):
            steps.begin()
            client.post("produce", 9, node.produce_body("t", records))
            response = await the_response(client)
            tried.append(on_reference_machine(steps.longest))
            assert response.responses[0].partition_responses[0].error_code == 0
        trio.lowlevel.remove_instrument(steps)
    print(f"batch for a compacted topic, {len(records)} bytes: {1000 * min(tried):.1f} ms")
    assert min(tried) < INSPECTION_SECONDS_MAX, tried


# -- producer ids: as many as a partition keeps


def remembers_most(producers: Producers) -> None:
    for number in range(PRODUCERS_PER_PARTITION_MAX):
        producers.replay(number, 0, 0, number, 0, NOW, 0)


def longest_of(steps: Iterator[None]) -> float:
    """The longest of these steps of one generator, in CPU seconds."""
    longest = 0.0
    while True:
        began = time.thread_time()
        ended = next(steps, steps) is steps
        longest = max(longest, time.thread_time() - began)
        if ended:
            return longest


@pytest.mark.parametrize("work", ["expire", "forget"])
def test_idle_producers_of_a_full_partition(work: str) -> None:
    tried = []
    for _ in range(TRIES):
        producers = Producers()
        remembers_most(producers)
        gc.collect()
        gc.freeze()
        steps = expire(producers, NOW, 1) if work == "expire" else forget_oldest(producers, 0)
        tried.append(on_reference_machine(longest_of(steps)))
    gc.unfreeze()
    print(f"{work} {PRODUCERS_PER_PARTITION_MAX} producers: {1000 * min(tried):.1f} ms")
    assert min(tried) < PRODUCERS_SECONDS_MAX, tried


async def test_the_description_of_a_full_partition(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        remembers_most(node.partition("t").log.producers)
        client = await node.connect()
        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        tried = []
        for _ in range(TRIES):
            steps.begin()
            client.post(
                "describe_producers", 0, {"topics": [{"name": "t", "partition_indexes": [0]}]}
            )
            await run_until_idle()
            tried.append(on_reference_machine(steps.longest))
            (response,) = client.responses()
            (row,) = response.topics[0].partitions
            assert len(row.active_producers) == PRODUCERS_PER_PARTITION_MAX
            del response, row
        trio.lowlevel.remove_instrument(steps)
    print(f"DescribeProducers, {PRODUCERS_PER_PARTITION_MAX} ids: {1000 * min(tried):.1f} ms")
    assert min(tried) < DESCRIBED_SECONDS_MAX, tried


# -- lookups by time


async def longest_lookup(client: Client, timestamp: int, offset: int) -> float:
    """A lookup in committed records; it finds `offset`."""
    steps = Steps()
    trio.lowlevel.add_instrument(steps)
    tried = []
    rows = [{"partition_index": 0, "timestamp": timestamp}]
    for _ in range(TRIES):
        steps.begin()
        client.post(
            "list_offsets",
            8,
            {"replica_id": -1, "isolation_level": 1, "topics": [{"name": "t", "partitions": rows}]},
        )
        response = await the_response(client)
        tried.append(on_reference_machine(steps.longest))
        (row,) = response.topics[0].partitions
        assert (row.error_code, row.offset) == (0, offset), row
    trio.lowlevel.remove_instrument(steps)
    return min(tried)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
async def test_a_lookup_by_time_in_a_batch_with_many_records(tmp_path: Path, codec: Codec) -> None:
    """As many records as a lookup inspects; the last one is the youngest."""
    count = INSPECTED_BYTES_MAX // INSPECTED_BYTES_PER_RECORD
    rows = [Record(0, NOW + number // (count - 1), b"", b"", ()) for number in range(count)]
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        await client.produce("t", build_batch(rows, codec=codec))
        longest = await longest_lookup(client, NOW + 1, count - 1)
    print(f"lookup by time in a batch of {count} records, {codec.name}: {1000 * longest:.1f} ms")
    assert longest < LOOKUP_SECONDS_MAX


async def test_the_largest_timestamp_below_an_open_transaction(tmp_path: Path) -> None:
    """The youngest batch is not stable, so the headers of all others are read."""
    async with rig(tmp_path, transaction_partition_verification_enable="false") as node:
        node.create("t")
        client = await node.connect()
        for number in range(WALKED_BATCHES):
            small = build_batch([(None, b"")], timestamp=NOW - (number > 0))
            node.replica.append_nowait(
                node.partition("t"), memoryview(bytearray(small)), 1, NOW, client=False
            )
        unstable = batch(timestamp=NOW + 1, producer_id=9, sequence=0, transactional=True)
        assert (await client.produce("t", unstable, transactional_id="tx")).error_code == 0
        assert node.partition("t").last_stable_offset < node.partition("t").high_watermark
        longest = await longest_lookup(client, MAX_TIMESTAMP, 0)
    print(f"largest timestamp of {WALKED_BATCHES} batches: {1000 * longest:.1f} ms")
    assert longest < LOOKUP_SECONDS_MAX
