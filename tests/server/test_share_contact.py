"""Share sessions that end, while their node has no contact or the member reopens them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from mqd.share.service import ShareService
from mqd.share.sessions import SessionKey
from tests.log.support import wait_until
from tests.nodes import connected, create_topic, one_node_peers
from tests.server.test_share_groups import (
    ACCEPT,
    GROUP,
    RELEASE,
    SECONDS_MAX,
    TOPIC,
    Member,
    configure,
    running,
    write,
)


@asynccontextmanager
async def joined(
    directory: Path, *values: bytes, **configs: str
) -> AsyncIterator[tuple[ShareService, Member]]:
    """The share partitions of a node, and a member of a group on a topic with these records."""
    async with running(directory, one_node_peers()) as one, connected(one) as client:
        await create_topic(client, TOPIC)
        await create_topic(client, "letters")
        await configure(client, share_auto_offset_reset="earliest", **configs)
        await write(client, *values)
        member = Member(client, "m1")
        await member.join()
        assert one.daemon is not None
        yield one.daemon.coordinators.share, member


async def test_a_session_that_ends_without_contact_leaves_no_record_acquired(
    tmp_path: Path,
) -> None:
    """Its record was delivered as often as allowed, and waits for a dead letter."""
    configs = {
        "share_delivery_count_limit": "2",
        "errors_deadletterqueue_topic_name": "letters",
    }
    async with joined(tmp_path, b"0", **configs) as (share, member):
        assert await member.fetch() == [(0, 0, 1)]
        assert await member.fetch((0, 0, RELEASE)) == [(0, 0, 2)]
        [led] = share.partitions
        session = share.sessions.end(SessionKey(GROUP, "m1"))
        assert session is not None
        led.partition.serves = False
        await share.release(session)
        led.partition.serves = True
        with trio.fail_after(SECONDS_MAX):
            await wait_until(lambda: led.core.states.start_offset)


async def test_a_session_that_reopens_keeps_what_it_acquires(tmp_path: Path) -> None:
    """The release of the member's earlier session has not begun yet."""
    async with joined(tmp_path, b"0", b"1") as (share, member):
        assert await member.fetch(max_records=1) == [(0, 0, 1)]
        in_slices, may_release = share._in_slices, trio.Event()

        async def late(work: Any) -> Any:
            await may_release.wait()
            return await in_slices(work)

        share._in_slices = late
        [peer] = share.sessions._by_peer
        share.connection_closed(peer)
        acquired: list[tuple[int, int, int]] = []

        async def reopen() -> None:
            acquired.extend(await member.fetch(epoch=0, max_records=1))

        def waits() -> bool:
            waiting = (one.statistics().tasks_waiting for one in share._releases.values())
            return bool(acquired) or any(waiting)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(reopen)
            with trio.fail_after(SECONDS_MAX):
                await wait_until(waits)
            may_release.set()
        [(first, last, _)] = acquired
        with trio.fail_after(SECONDS_MAX):
            await wait_until(lambda: not share._releases)
        assert await member.fetch((first, last, ACCEPT), epoch=1, max_records=1, wait_ms=0)


async def test_a_late_acknowledgement_is_confirmed_when_the_start_offset_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record was archived when its lock ended: only the start offset says that it is done."""
    configs = {"share_delivery_count_limit": "2", "share_record_lock_duration_ms": "1000"}
    async with joined(tmp_path, b"0", **configs) as (share, member):
        assert await member.fetch() == [(0, 0, 1)]
        assert await member.fetch((0, 0, RELEASE)) == [(0, 0, 2)]
        [led] = share.partitions
        persister = share._writer._persister
        store, started, may_store = persister.write, trio.Event(), trio.Event()

        async def late(*args: Any, **more: Any) -> None:
            started.set()
            await may_store.wait()
            await store(*args, **more)

        monkeypatch.setattr(persister, "write", late)
        with trio.fail_after(SECONDS_MAX):
            await started.wait()
        assert led.core.states.start_offset == 1
        confirmed = trio.Event()

        async def acknowledge() -> None:
            row = await member.row((0, 0, ACCEPT))
            assert row is None or not row.acknowledge_error_code
            confirmed.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(acknowledge)
            with trio.fail_after(SECONDS_MAX):
                await wait_until(lambda: led.writes or confirmed.is_set())
            assert not confirmed.is_set()
            may_store.set()
