"""Administration of share groups in a simulated cluster: members, offsets, lag."""

from __future__ import annotations

import pytest
import trio

from mqd.client.admin import Admin
from mqd.client.errors import ClientError
from mqd.client.group_descriptions import GroupDescription
from mqd.client.share_group_admin import ShareOffset
from mqd.errors import ErrorCode
from mqd.testing import Cluster, simulated
from mqd.types import TopicPartition
from tests.nodes import create_topic
from tests.server.test_share_groups import ACCEPT, GROUP, OPTIONS, TOPIC, Member, configure, write
from tests.server.test_share_offsets import leave

PLACE = TopicPartition(TOPIC, 0)


@simulated(seed=3)
async def test_members_offsets_and_lag() -> None:
    async with Cluster(nodes=1, options=OPTIONS) as cluster:
        connection = await cluster.connect(1)
        await create_topic(connection, TOPIC)
        await configure(connection, share_auto_offset_reset="earliest")
        await write(connection, b"0", b"1", b"2", b"3")
        admin = Admin(await cluster.client("admin"))
        member = Member(await cluster.connect(1), "m1")
        await member.join()
        assert (await admin.list_share_group_offsets([GROUP]))[GROUP] == {
            PLACE: ShareOffset(None, None, 0, 0)
        }
        assert await member.fetch() == [(0, 3, 1)]
        await member.row((0, 0, ACCEPT), (2, 2, ACCEPT))

        described = (await admin.describe_groups([GROUP, "none"]))[GROUP]
        assert isinstance(described, GroupDescription)
        assert (described.type, described.state, described.assignor) == (
            "share",
            "Stable",
            "simple",
        )
        [one] = described.members
        assert (one.member_id, one.assignment) == ("m1", (PLACE,))
        [lag] = await admin.group_lag(GROUP)
        assert lag.committed is not None
        assert (lag.tp, lag.committed.offset, lag.end, lag.lag) == (PLACE, 1, 4, 2)

        with pytest.raises(ClientError) as refused:
            await admin.alter_share_group_offsets(GROUP, {PLACE: 0})
        assert refused.value.code is ErrorCode.NON_EMPTY_GROUP
        await leave(connection, member)
        missing = TopicPartition("missing", 0)
        results = await admin.alter_share_group_offsets(GROUP, {PLACE: 2, missing: 0})
        error = results[missing]
        assert results[PLACE] is None
        assert error is not None and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        found = await admin.list_share_group_offsets([GROUP, "none"])
        assert found == {GROUP: {PLACE: ShareOffset(2, 2, 0, 0)}, "none": {}}
        assert await admin.delete_share_group_offsets(GROUP, [TOPIC]) == {TOPIC: None}
        assert await admin.delete_groups([GROUP]) == {GROUP: None}
        with trio.fail_after(10):
            gone = (await admin.describe_groups([GROUP]))[GROUP]
        assert isinstance(gone, ClientError) and gone.code is ErrorCode.GROUP_ID_NOT_FOUND
