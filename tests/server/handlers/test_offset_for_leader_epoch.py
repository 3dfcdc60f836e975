"""OffsetForLeaderEpoch through the whole server: where epochs end, and which ends are unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqd.errors import ErrorCode
from tests.log.support import batch
from tests.server.rig import ME, OTHER, Client, rig


async def end_of(
    client: Client, epoch: int, *, version: int = 4, current: int = -1, topic: str = "t"
) -> tuple[int, int, int]:
    """(error code, epoch, end offset)."""
    row = {"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}
    response = await client.request(
        "offset_for_leader_epoch", version, {"topics": [{"topic": topic, "partitions": [row]}]}
    )
    found = response.topics[0].partitions[0]
    return found.error_code, found.leader_epoch, found.end_offset


@pytest.mark.parametrize("version", range(2, 5))
async def test_an_epoch_ends_where_the_next_begins(tmp_path: Path, version: int) -> None:
    async with rig(tmp_path) as node:
        node.create("t", replicas=(ME, OTHER), isr=(ME,))
        client = await node.connect()
        await client.produce("t", batch(b"a", b"b"))
        for _ in range(3):
            node.lead("t", ME)
        await client.produce("t", batch(b"c"))
        assert await end_of(client, 0, version=version) == (0, 0, 2)
        assert await end_of(client, 1, version=version) == (0, 0, 2)  # no batch was written in it
        assert await end_of(client, 3, version=version) == (0, 3, 3)
        assert await end_of(client, 4, version=version) == (0, -1, -1)
        assert await end_of(client, -1, version=version) == (0, -1, -1)


async def test_the_current_epoch_ends_at_the_log_end_also_without_records(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        assert await end_of(client, 0) == (0, 0, 0)
        await client.produce("t", batch(b"a"))
        node.lead("t", ME)
        assert await end_of(client, 1) == (0, 1, 1)


async def test_a_past_epoch_without_records_is_known(tmp_path: Path) -> None:
    """A consumer that began at the end in epoch 0 sends this after the node restarted; "unknown"
    resets its position.
    """
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        node.lead("t", ME)
        assert await end_of(client, 0) == (0, 0, 0)
        await client.produce("t", batch(b"a"))
        node.lead("t", ME)
        node.lead("t", ME)
        assert await end_of(client, 2) == (0, 1, 1)


async def test_leader_epochs_fence(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t", replicas=(ME, OTHER), isr=(ME,))
        node.lead("t", ME)
        client = await node.connect()
        assert await end_of(client, 1, current=1) == (0, 1, 0)
        assert (await end_of(client, 1, current=0))[0] == ErrorCode.FENCED_LEADER_EPOCH
        assert (await end_of(client, 1, current=2))[0] == ErrorCode.UNKNOWN_LEADER_EPOCH
        node.lead("t", OTHER, isr=(ME, OTHER))
        assert await end_of(client, 1) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1)
        assert await end_of(client, 1, topic="missing") == (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            -1,
            -1,
        )
