"""The composition root: starting, refusing to start, signals, stopping with clients, and
which metadata is carried out.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from struct import pack
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from chaos.node import free_ports
from mqd import daemon
from mqd.config import NodeConfig, StartError, StartOptions
from mqd.errors import ErrorCode, StorageError
from mqd.io.disk import File, OsDisk
from mqd.node.signals import StopSignals
from mqd.peers import Peers, parse_peers
from mqd.types import NO_EPOCH
from tests.log.support import FaultyDisk
from tests.nodes import (
    RunningNode,
    ask,
    batch,
    connected,
    create_topic,
    fetch,
    node,
    one_node_peers,
    produce,
)

SIGNAL = signal.SIGUSR1
"""Replaces SIGTERM, which the test runner may need itself."""
DEADLINE_S = 20.0
LATEST = -1


def peers_of(nodes: int, *, cluster: str = "test-cluster", extra: str = "") -> Peers:
    ports = free_ports(2 * nodes)
    text = f'cluster_id = "{cluster}"\n'
    for number in range(nodes):
        port, peer_port = ports[2 * number : 2 * number + 2]
        text += (
            f'[[node]]\nid = {number + 1}\nhost = "127.0.0.1"\nport = {port}\npeer_port = '
            f"{peer_port}\n{extra}"
        )
    return parse_peers(text, Path("peers.toml"))


class Started:
    """A daemon in a task: its ready line, and how it ended."""

    def __init__(self) -> None:
        self.announced: list[str] = []
        self.ready = trio.Event()
        self.ended = trio.Event()
        self.failure: BaseException | None = None

    def announce(self, line: str) -> None:
        self.announced.append(line)
        self.ready.set()


@asynccontextmanager
async def started(
    directory: Path,
    peers: Peers,
    *,
    node_id: int = 1,
    disk: OsDisk | None = None,
    owns_process: bool = False,
    **options: str,
) -> AsyncIterator[Started]:
    """A daemon that stops at SIGNAL, for the length of the block at most."""
    found = Started()
    config = NodeConfig.load(
        None, {}, {key.replace("_", "."): value for key, value in options.items()}
    )
    signals = StopSignals(SIGNAL)
    seams = daemon.Seams(
        announce=found.announce,
        signals=signals,
        disk=disk or OsDisk(),
        owns_process=owns_process,
    )

    async def run() -> None:
        try:
            await daemon.main(StartOptions(peers, node_id, directory, config), seams)
        except Exception as error:
            found.failure = error
        finally:
            found.ended.set()

    with signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            with trio.fail_after(DEADLINE_S):
                yield found
            nursery.cancel_scope.cancel()


async def refusal(directory: Path, peers: Peers, **options: Any) -> str:
    """Why a daemon does not start."""
    async with started(directory, peers, **options) as run:
        await run.ended.wait()
        assert not run.announced
    assert run.failure is not None
    failure: BaseException = run.failure
    while isinstance(failure, BaseExceptionGroup):
        (failure,) = failure.exceptions
    assert isinstance(failure, StartError)
    return str(failure)


# -- refusing to start


async def test_a_log_directory_of_another_cluster_or_node_is_refused(tmp_path: Path) -> None:
    logs: dict[str, Any] = {"log_dirs": str(tmp_path / "logs")}
    async with started(tmp_path / "one", peers_of(1), **logs) as run:
        await run.ready.wait()
    assert "is of cluster 'test-cluster', not 'other'" in await refusal(
        tmp_path / "two", peers_of(1, cluster="other"), **logs
    )
    assert "is of node 1, not 2" in await refusal(
        tmp_path / "three", peers_of(2), node_id=2, **logs
    )
    # the refusals changed nothing
    async with started(tmp_path / "one", peers_of(1), **logs) as run:
        await run.ready.wait()


async def test_an_invalid_data_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert "the data directory cannot be used" in await refusal(
        tmp_path / "file" / "data", one_node_peers()
    )


async def test_unusable_log_directories(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert "the log directories cannot be used" in await refusal(
        tmp_path, one_node_peers(), log_dirs=str(tmp_path / "file")
    )


async def test_one_directory_that_cannot_be_used_does_not_stop_the_others(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    async with started(
        tmp_path, one_node_peers(), log_dirs=f"{tmp_path / 'file'},{tmp_path / 'good'}"
    ) as run:
        await run.ready.wait()


async def test_a_registration_that_cannot_be_stored_is_reported(tmp_path: Path) -> None:
    class BadDisk(OsDisk):
        def write_atomic(self, path: Path, data: bytes) -> None:
            if path.name == "registration":
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            super().write_atomic(path, data)

    reason = await refusal(tmp_path, one_node_peers(), disk=BadDisk())
    assert (
        reason.startswith("the data directory cannot be used: [Errno 5]")
        and f"check {tmp_path / 'registration'}" in reason
    )


async def test_a_refused_start_releases_its_resources(tmp_path: Path) -> None:
    peers = one_node_peers()
    (tmp_path / "file").write_text("in the way")
    await refusal(tmp_path, peers, log_dirs=str(tmp_path / "file"))
    async with started(tmp_path, peers) as run:
        await run.ready.wait()


# -- signals


@pytest.mark.usefixtures("thaws_the_heap")
async def test_a_signal_stops_a_node_cleanly(tmp_path: Path) -> None:
    thresholds = gc.get_threshold()
    async with started(tmp_path, one_node_peers(), owns_process=True) as run:
        await run.ready.wait()
        assert gc.get_threshold() > thresholds
        os.kill(os.getpid(), SIGNAL)
        await run.ended.wait()
    assert run.failure is None
    assert gc.get_threshold() == thresholds
    assert len(run.announced) == 1
    assert (tmp_path / "logs" / ".kafka_cleanshutdown").exists()


async def test_a_signal_ends_a_start_that_waits_for_a_quorum(tmp_path: Path) -> None:
    peers = peers_of(3)
    async with started(tmp_path, peers) as run:
        with trio.fail_after(DEADLINE_S):
            while not (tmp_path / "logs" / "meta.properties").exists():
                await trio.lowlevel.checkpoint()
        await wait_all_tasks_blocked(0.01)
        os.kill(os.getpid(), SIGNAL)
        await run.ended.wait()
    assert run.failure is None
    assert run.announced == []
    assert (tmp_path / "logs" / ".kafka_cleanshutdown").exists()


async def test_clients_are_refused_before_the_registration_and_peers_are_not(
    tmp_path: Path,
) -> None:
    peers = peers_of(3)
    me = peers.nodes[1]
    async with started(tmp_path, peers) as run:
        await wait_all_tasks_blocked(0.01)
        with trio.fail_after(DEADLINE_S):
            async with await trio.open_tcp_stream("127.0.0.1", me.port) as client:
                request = pack(">hhih", 18, 0, 1, -1)
                await client.send_all(pack(">i", len(request)) + request)
                async with await trio.open_tcp_stream("127.0.0.1", me.peer_port) as peer:
                    await peer.send_all(pack(">i", len(request)) + request)
                    assert await peer.receive_some(4)
                with trio.move_on_after(0.02) as scope:
                    await client.receive_some(4)
                assert scope.cancelled_caught
        assert run.announced == []


# -- stopping


async def test_stopping_closes_clients_and_keeps_acknowledged_records(
    tmp_path: Path,
) -> None:
    peers = one_node_peers()
    async with started(tmp_path, peers) as run:
        await run.ready.wait()
        running = RunningNode(peers, 1)
        async with (
            connected(running) as idle,
            connected(running) as waiting,
            trio.open_nursery() as nursery,
        ):
            await create_topic(idle, "t")
            assert (await produce(idle, "t", batch(b"kept"))).error_code == 0
            half = await trio.open_tcp_stream("127.0.0.1", running.port)
            await half.send_all(pack(">i", 1000) + b"begun")
            codes: list[int] = []

            async def wait_for_records() -> None:
                codes.append(
                    (
                        await fetch(waiting, "t", 1, max_wait_ms=60_000, current_leader_epoch=0)
                    ).error_code
                )

            nursery.start_soon(wait_for_records)
            await wait_all_tasks_blocked(0.02)
            os.kill(os.getpid(), SIGNAL)
            await run.ended.wait()
            assert await half.receive_some(10) == b""
            await half.aclose()
        # leadership was transferred first: find the next leader
        assert codes == [ErrorCode.FENCED_LEADER_EPOCH]
        assert idle.failure is not None
    assert run.failure is None
    assert (tmp_path / "logs" / ".kafka_cleanshutdown").exists()
    async with node(tmp_path, peers=peers) as again, connected(again) as connection:
        assert (await fetch(connection, "t", 0)).high_watermark == 1


class BrokenLogs(FaultyDisk):
    """A disk that fails only under the logs."""

    def open(self, path: Path, *, create: bool = False) -> File:
        return (
            super().open(path, create=create)
            if "logs" in path.parts
            else OsDisk().open(path, create=create)
        )


async def test_a_node_without_any_log_directory_left_stops_with_the_reason(tmp_path: Path) -> None:
    peers, disk = one_node_peers(), BrokenLogs()
    async with started(tmp_path, peers, disk=disk) as run:
        await run.ready.wait()
        running = RunningNode(peers, 1)
        async with connected(running) as connection:
            await create_topic(connection, "t")
            disk.write_error = errno.EIO
            row = await produce(connection, "t", batch(b"lost"))
            assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        await run.ended.wait()
    assert isinstance(run.failure, StartError)
    assert "no log directory is online" in str(run.failure)
    assert not (tmp_path / "logs" / ".kafka_cleanshutdown").exists()


async def test_a_directory_that_fails_before_the_registration_is_not_trusted(
    tmp_path: Path,
) -> None:
    """The contents of the file were read already."""
    node = daemon.Daemon(
        StartOptions(one_node_peers(), 1, tmp_path, NodeConfig.load(None, {}, {})),
        daemon.Seams(),
    )
    node.stop, node.controller.lifecycle.previous_broker_epoch = trio.Event(), 7
    node._on_directory_failed(tmp_path / "logs", StorageError("the disk is gone"))
    assert node.controller.lifecycle.previous_broker_epoch == NO_EPOCH


async def test_a_restart_repeats_no_past_changes(tmp_path: Path) -> None:
    peers = one_node_peers()
    async with node(tmp_path, peers=peers) as running, connected(running) as connection:
        for name in ("gone", "t"):
            await create_topic(connection, name)
        await ask(
            connection, "delete_topics", 5, {"topic_names": ["gone", "t"], "timeout_ms": 10_000}
        )
        await create_topic(connection, "t")
        await produce(connection, "t", batch(b"kept"))
    (tmp_path / "logs" / "stray-0").mkdir()
    for file in (tmp_path / "logs" / "t-0").iterdir():
        (tmp_path / "logs" / "stray-0" / file.name).write_bytes(file.read_bytes())
    async with node(tmp_path, peers=peers) as running, connected(running) as connection:
        assert (await fetch(connection, "t", 0)).high_watermark == 1
        directories = sorted(path.name for path in (tmp_path / "logs").iterdir() if path.is_dir())
        assert [name for name in directories if not name.endswith("-delete")] == ["t-0"]
        assert not any(name.startswith("gone-0.") for name in directories)


async def test_a_consumer_that_began_at_the_end_continues_after_a_restart(tmp_path: Path) -> None:
    peers = one_node_peers()
    async with node(tmp_path, peers=peers) as running, connected(running) as connection:
        await create_topic(connection, "t")
        body = {
            "replica_id": -1,
            "topics": [{"name": "t", "partitions": [{"partition_index": 0, "timestamp": LATEST}]}],
        }
        found = (await ask(connection, "list_offsets", 7, body)).topics[0].partitions[0]
        assert (found.error_code, found.offset) == (0, 0)
    async with node(tmp_path, peers=peers) as running, connected(running) as connection:
        requested = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": found.leader_epoch}
        answer = await ask(
            connection,
            "offset_for_leader_epoch",
            4,
            {"topics": [{"topic": "t", "partitions": [requested]}]},
        )
        row = answer.topics[0].partitions[0]
        assert (row.error_code, row.leader_epoch, row.end_offset) == (0, found.leader_epoch, 0)


async def test_more_replicas_in_sync_than_nodes_are_refused(tmp_path: Path) -> None:
    reason = await refusal(tmp_path, peers_of(2), min_insync_replicas="3")
    for said in ("min.insync.replicas is 3", "peers.toml has 2 node(s)", "set it to 2 or less"):
        assert said in reason
    async with started(tmp_path, peers_of(1), min_insync_replicas="1") as run:
        await run.ready.wait()


async def test_a_default_of_too_many_replicas_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with node(tmp_path, options={"default.replication.factor": "3"}):
        pass
    assert "default.replication.factor exceeds the number of nodes" in caplog.text
    assert "configured=3 used=1 nodes=1" in caplog.text
