"""Lag with committed offsets: from this node's own logs, from other leaders, and unknown."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from mqd.errors import ErrorCode
from mqd.server import lag
from mqd.types import NO_NODE, TopicPartition
from tests.log.support import NOW, batch
from tests.server.rig import OTHER, Rig, rig

TO_HIGH_WATERMARK, TO_LAST_STABLE_OFFSET = 1, 2


def committing(node: Rig, **offsets: list[int]) -> None:
    """A coordinator of one group "g" that has committed these offsets: topic=[of partition 0, of
    partition 1, ...]; -1: none.
    """

    async def call(key: str, op: Any) -> Mapping[str, Any]:
        topics = [
            {
                "name": topic,
                "partitions": [
                    {
                        "partition_index": index,
                        "committed_offset": offset,
                        "committed_leader_epoch": -1,
                        "metadata": "",
                        "error_code": 0,
                    }
                    for index, offset in enumerate(each)
                ],
            }
            for topic, each in offsets.items()
        ]
        return {"group_id": key, "topics": topics, "error_code": 0}

    node.node.groups = SimpleNamespace(call=call, partition_of=lambda key: 0)


class Leader:
    """Another node, on its peer listener."""

    def __init__(
        self, start: int, end: int, *, refuses: int = 0, waits: float = 0, fails: bool = False
    ) -> None:
        self.offsets = {-2: start, -1: end}
        self.refuses = refuses
        self.waits = waits
        self.fails = fails
        self.requests: list[tuple[int, int, int]] = []

    async def __call__(
        self, node_id: int, api: str, version: int, request: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        assert api == "ListOffsets"
        rows = request["topics"][0]["partitions"]
        self.requests.append((node_id, rows[0]["timestamp"], len(rows)))
        await trio.sleep(self.waits)
        if self.fails:
            raise OSError("gone")
        return {
            "topics": [
                {
                    "name": topic["name"],
                    "partitions": [
                        {
                            "partition_index": row["partition_index"],
                            "error_code": self.refuses,
                            "offset": self.offsets[row["timestamp"]],
                        }
                        for row in topic["partitions"]
                    ],
                }
                for topic in request["topics"]
            ]
        }


async def lag_of(
    node: Rig, wanted: int = TO_HIGH_WATERMARK, version: int = 8
) -> list[tuple[int, int, int, int]]:
    client = await node.connect()
    response = await client.request(
        "offset_fetch",
        version,
        {"groups": [{"group_id": "g", "topics": None}], "lag_wanted": wanted},
    )
    assert response.has_log_ends == bool(wanted)
    rows = [row for topic in response.groups[0].topics for row in topic.partitions]
    return [
        (row.committed_offset, row.log_start_offset, row.log_end_offset, row.lag) for row in rows
    ]


async def test_without_a_request_for_it_the_response_has_no_lag(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        committing(node, t=[0])
        assert await lag_of(node, 0) == [(0, -1, -1, -1)]


async def test_the_lag_of_partitions_that_this_node_leads(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t", 3)
        client = await node.connect()
        for index in range(2):
            await client.produce("t", batch(*[b"x"] * 5), partition=index)
        committing(node, t=[2, -1, 7])
        assert await lag_of(node) == [(2, 0, 5, 3), (-1, 0, 5, -1), (7, 0, 0, 0)]


async def test_readers_of_committed_records_have_a_smaller_lag(tmp_path: Path) -> None:
    async with rig(tmp_path, transaction_partition_verification_enable="false") as node:
        node.create("t")
        client = await node.connect()
        await client.produce("t", batch(b"a", b"b"))
        data = batch(b"c", producer_id=9, sequence=0, transactional=True)
        assert (await client.produce("t", data, transactional_id="tx")).error_code == 0
        committing(node, t=[1])
        assert await lag_of(node, TO_HIGH_WATERMARK) == [(1, 0, 3, 2)]
        assert await lag_of(node, TO_LAST_STABLE_OFFSET) == [(1, 0, 2, 1)]
        node.replica.append_marker_nowait(node.partition("t"), (9, 0), 0, True, NOW, 0)
        node.replica.end_of_turn()
        assert await lag_of(node, TO_LAST_STABLE_OFFSET) == [(1, 0, 4, 3)]


async def test_other_leaders_get_one_request_for_all_groups(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t", 2, replicas=(OTHER,))
        leader = node.node.forward = Leader(3, 10)
        committing(node, t=[4, -1])
        client = await node.connect()
        groups = [{"group_id": name, "topics": None} for name in ("g", "h")]
        response = await client.request(
            "offset_fetch", 9, {"groups": groups, "lag_wanted": TO_HIGH_WATERMARK}
        )
        rows = [
            row for group in response.groups for topic in group.topics for row in topic.partitions
        ]
        assert [(row.log_start_offset, row.log_end_offset, row.lag) for row in rows] == [
            (3, 10, 6),
            (3, 10, -1),
        ] * 2
        assert leader.requests == [(OTHER, -2, 2), (OTHER, -1, 2)]


@pytest.mark.parametrize(
    "leader",
    [Leader(0, 9, refuses=int(ErrorCode.NOT_LEADER_OR_FOLLOWER)), Leader(0, 9, fails=True)],
)
async def test_an_unknown_end_delays_no_other(tmp_path: Path, leader: Leader) -> None:
    async with rig(tmp_path) as node:
        node.create("gone")
        node.create("here")
        node.create("there", replicas=(OTHER,))
        node.lead("gone", NO_NODE)
        node.node.forward = leader
        committing(node, gone=[0], here=[0], there=[0], deleted=[5])
        assert await lag_of(node) == [
            (0, -1, -1, -1),
            (0, 0, 0, 0),
            (0, -1, -1, -1),
            (5, -1, -1, -1),
        ]


async def test_a_hanging_leader_delays_the_response_only_briefly(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    async with rig(tmp_path) as node:
        node.create("here")
        node.create("there", replicas=(OTHER,))
        node.node.forward = Leader(0, 9, waits=60)
        before = trio.current_time()
        places = [TopicPartition("here", 0), TopicPartition("there", 0)]
        assert await lag.log_bounds(node.node, places, read_committed=False) == {places[0]: [0, 0]}
        assert trio.current_time() - before == pytest.approx(lag.TIMEOUT_SECONDS, abs=0.1)
