"""A client cannot make a node take memory outside of the bounds: the resident memory of a node that
runs in its own process, with small bounds.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from chaos.node import Node
from mqd.limits import MIB
from mqd.protocol.batch_builder import build_batch
from mqd.testing.requests import fetch_body, frame
from tests.hostile.share import UNKNOWN_PARTITIONS, id_of, initialize, share_fetch, topic
from tests.hostile.wire import Wire

OPTIONS = (
    f"memory.budget.bytes={64 * MIB}",
    f"group.members.memory.bytes={16 * MIB}",
    f"group.coordinator.memory.bytes={16 * MIB}",
    "offsets.topic.num.partitions=1",
    "auto.create.topics.enable=false",
)
RESIDENT_BYTES_MAX = 128 * MIB
"""What an attack may add: the budget, the groups, and as much again for the allocator's pools."""
SESSIONS, SESSION_TOPICS = 60, 100
MEMBERS, MEMBERS_PER_GROUP = 1_000, 50
LISTED, LISTED_AT_ONCE, LISTED_NAME_CHARS = 3_000, 250, 3_900
LISTING_CONNECTIONS, LISTINGS = 60, 3
LISTING_SECONDS = 2.0
SHARE_SESSIONS, SHARE_SESSIONS_WITH_PARTITIONS, ID_CHARS = 2_000, 10, 32_000
SHARE_READERS = 60
TEXT_CHARS = 32_700
"""Near the longest string of a request."""
GROUP_RESOURCE = 32

pytestmark = [pytest.mark.slow]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    running = Node(tmp_path, OPTIONS)
    running.start()
    try:
        yield running
    finally:
        running.kill()


def resident_bytes(node: Node) -> int:
    pages = int(Path(f"/proc/{node.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def fetch_sessions_of_long_names(node: Node) -> int:
    """No topic can have such a name."""
    topics = [
        {"topic": f"{number:03}".ljust(TEXT_CHARS, "x"), "partitions": [{"partition": 0}]}
        for number in range(SESSION_TOPICS)
    ]
    request = frame("fetch", 12, {**fetch_body("", [], session_epoch=0), "topics": topics})
    with closing(Wire(node.port)) as wire:
        for _ in range(SESSIONS):
            wire.send(request)
            wire.receive()
        return resident_bytes(node)


def members_with_long_ids(node: Node) -> int:
    with closing(Wire(node.port)) as wire:
        find = {"key_type": 0, "coordinator_keys": ["g"]}
        while wire.ask("find_coordinator", 4, find).coordinators[0].error_code:
            time.sleep(0.05)
        for number in range(MEMBERS):
            texts = {
                key: f"{number:06}".ljust(TEXT_CHARS, "x")
                for key in ("member_id", "instance_id", "rack_id")
            }
            body = {
                **texts,
                "group_id": f"g{number // MEMBERS_PER_GROUP}",
                "member_epoch": 0,
                "rebalance_timeout_ms": 60_000,
                "subscribed_topic_names": ["t"],
                "subscribed_topic_regex": None,
                "topic_partitions": [],
            }
            wire.send(frame("consumer_group_heartbeat", 1, body))
            wire.receive()
        return resident_bytes(node)


def lists_of_configured_groups(node: Node) -> int:
    """Requests of 16 bytes, with responses of 12 MB that nobody reads."""
    set_timeout = {
        "name": "consumer.session.timeout.ms",
        "config_operation": 0,
        "value": "50000",
    }
    with closing(Wire(node.port)) as wire:
        for first in range(0, LISTED, LISTED_AT_ONCE):
            resources = [
                {
                    "resource_type": GROUP_RESOURCE,
                    "resource_name": f"{number:06}".ljust(LISTED_NAME_CHARS, "x"),
                    "configs": [set_timeout],
                }
                for number in range(first, first + LISTED_AT_ONCE)
            ]
            body = {"resources": resources, "validate_only": False}
            answer = wire.ask("incremental_alter_configs", 1, body)
            assert not any(row.error_code for row in answer.responses)
    before, most = resident_bytes(node), 0
    wires = [Wire(node.port) for _ in range(LISTING_CONNECTIONS)]
    for one in wires:
        one.send(frame("list_config_resources", 1, {"resource_types": []}) * LISTINGS)
    ends_at = time.monotonic() + LISTING_SECONDS
    while time.monotonic() < ends_at:
        most = max(most, resident_bytes(node))
        time.sleep(0.01)
    for one in wires:
        one.close()
    return most - before


def share_sessions_of_unknown_partitions(node: Node) -> int:
    """And with long ids, in groups that do not exist."""
    with closing(Wire(node.port)) as wire:
        for number in range(SHARE_SESSIONS):
            ids: dict[str, Any] = {
                key: f"{number:05}".ljust(ID_CHARS, "x") for key in ("group_id", "member_id")
            }
            wire.send(share_fetch("", 0, **ids))
            wire.receive()
            if number < SHARE_SESSIONS_WITH_PARTITIONS:
                partitions = topic(uuid.uuid4(), range(UNKNOWN_PARTITIONS))
                wire.send(share_fetch("", 1, [partitions], **ids))
                wire.receive()
        return resident_bytes(node)


def share_fetches_that_nobody_reads(node: Node) -> int:
    """8 MiB of records each."""
    with closing(Wire(node.port)) as wire:
        new = {"name": "t", "num_partitions": 10, "replication_factor": 1, "configs": []}
        wire.ask("create_topics", 7, {"topics": [new], "timeout_ms": 10_000})
        records = bytes(build_batch([(None, os.urandom(900_000))], timestamp=1))
        for index in range(10):
            rows = [{"index": index, "records": records}]
            body = {"topic_data": [{"name": "t", "partition_data": rows}]}
            while (
                wire.ask("produce", 9, {"acks": 1, "timeout_ms": 10_000, **body})
                .responses[0]
                .partition_responses[0]
                .error_code
            ):
                time.sleep(0.05)
        topic_id = id_of(wire, "t")
        for number in range(SHARE_READERS):
            while not initialize(wire, f"g{number}", topic_id, 10):
                pass
    before, most = resident_bytes(node), 0
    wires = [Wire(node.port) for _ in range(SHARE_READERS)]
    for number, one in enumerate(wires):
        partitions = topic(topic_id, range(10))
        one.send(share_fetch(f"g{number}", 0, [partitions], max_records=10_000))
    ends_at = time.monotonic() + LISTING_SECONDS
    while time.monotonic() < ends_at:
        most = max(most, resident_bytes(node))
        time.sleep(0.01)
    for one in wires:
        one.close()
    return most - before


@pytest.mark.parametrize(
    "attack",
    [fetch_sessions_of_long_names, members_with_long_ids, share_sessions_of_unknown_partitions],
)
def test_what_stays(node: Node, attack: Callable[[Node], int]) -> None:
    before = resident_bytes(node)
    grown = attack(node) - before
    print(f"{attack.__name__}: {grown / MIB:+.0f} MiB")
    assert grown < RESIDENT_BYTES_MAX


@pytest.mark.parametrize("attack", [lists_of_configured_groups, share_fetches_that_nobody_reads])
def test_responses_that_nobody_reads(node: Node, attack: Callable[[Node], int]) -> None:
    grown = attack(node)
    print(f"{attack.__name__}: {grown / MIB:+.0f} MiB")
    assert grown < RESIDENT_BYTES_MAX
