"""A client cannot make a node take memory outside of the bounds: the resident memory of a node that
runs in its own process, with small bounds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from chaos.node import Node
from mqd.limits import MIB
from mqd.testing.requests import fetch_body, frame
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


@pytest.mark.parametrize("attack", [fetch_sessions_of_long_names, members_with_long_ids])
def test_what_stays(node: Node, attack: Callable[[Node], int]) -> None:
    before = resident_bytes(node)
    grown = attack(node) - before
    print(f"{attack.__name__}: {grown / MIB:+.0f} MiB")
    assert grown < RESIDENT_BYTES_MAX


def test_responses_that_nobody_reads(node: Node) -> None:
    grown = lists_of_configured_groups(node)
    print(f"lists_of_configured_groups: {grown / MIB:+.0f} MiB")
    assert grown < RESIDENT_BYTES_MAX
