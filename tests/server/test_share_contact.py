"""A share partition whose node loses contact with the controller for a moment."""

from __future__ import annotations

from pathlib import Path

import trio

from mqd.share.sessions import SessionKey
from tests.nodes import connected, create_topic, one_node_peers
from tests.server.test_share_groups import (
    GROUP,
    RELEASE,
    SECONDS_MAX,
    TOPIC,
    Member,
    configure,
    running,
    write,
)


async def test_a_session_that_ends_without_contact_leaves_no_record_acquired(
    tmp_path: Path,
) -> None:
    """Its record was delivered as often as allowed, and waits for a dead letter."""
    async with running(tmp_path, one_node_peers()) as one, connected(one) as client:
        await create_topic(client, TOPIC)
        await create_topic(client, "letters")
        await configure(
            client,
            share_auto_offset_reset="earliest",
            share_delivery_count_limit="2",
            errors_deadletterqueue_topic_name="letters",
        )
        await write(client, b"0")
        member = Member(client, "m1")
        await member.join()
        assert await member.fetch() == [(0, 0, 1)]
        assert await member.fetch((0, 0, RELEASE)) == [(0, 0, 2)]
        assert one.daemon is not None
        share = one.daemon.coordinators.share
        [led] = share.partitions
        session = share.sessions.end(SessionKey(GROUP, "m1"))
        assert session is not None
        led.partition.serves = False
        await share.release(session)
        led.partition.serves = True
        with trio.fail_after(SECONDS_MAX):
            while led.core.states.start_offset == 0:  # noqa: ASYNC110
                await trio.sleep(0.02)
