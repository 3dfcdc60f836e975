"""Members of a share group that wait for records: each record wakes one of them."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from mqd.share.acquiring import Acquirer
from mqd.testing import Cluster, simulated
from tests.nodes import create_topic
from tests.server.test_share_groups import OPTIONS, TOPIC, Member, configure, write

MEMBERS = 10
WAIT_MS = 8_000


@simulated(seed=3)
async def test_a_record_wakes_one_of_many_members(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = 0
    original = Acquirer.acquire

    def counted(self: Acquirer, *args: Any) -> Any:
        nonlocal attempts
        attempts += 1
        return original(self, *args)

    monkeypatch.setattr(Acquirer, "acquire", counted)
    async with Cluster(nodes=1, options=OPTIONS) as cluster:
        client = await cluster.connect(1)
        await create_topic(client, TOPIC)
        await configure(client, share_auto_offset_reset="earliest")
        found: list[tuple[int, int, int]] = []

        async def work(member: Member) -> None:
            rows = await member.fetch(wait_ms=WAIT_MS)
            found.extend(rows)

        async with trio.open_nursery() as nursery:
            for number in range(MEMBERS):
                member = Member(await cluster.connect(1), f"m{number}")
                await member.join()
                nursery.start_soon(work, member)
            await trio.sleep(1)
            attempts = 0
            for number in range(3):
                await write(client, b"%d" % number)
                await trio.sleep(1)
            assert found == [(0, 0, 1), (1, 1, 1), (2, 2, 1)]
            assert len(found) <= attempts <= 2 * len(found), attempts
            nursery.cancel_scope.cancel()
