"""The partitions of a node: checks, checkpoints and failed log directories."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mqd.errors import ErrorCode, MqError
from mqd.replica import service
from mqd.replica.service import CHECKPOINT_SECONDS
from tests.replica.replicas import DURABLE, OTHER_ID, Replicas


@pytest.mark.parametrize("again", [False, True])
async def test_a_deletion_during_an_iteration_loses_no_partition(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    monkeypatch.setattr(service, "_CHECKED_AT_ONCE", 2)
    reported: list[tuple[UUID, int]] = []
    replicas.ports.on_offline = lambda *partition: reported.append(partition)
    replicas.held("first")
    replicas.held("then")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replicas.replica.check)
        await trio.lowlevel.checkpoint()
        replicas.replica.assignments.delete("then")
        if again:
            replicas.held("then", topic_id=OTHER_ID)
    assert reported == []


async def test_checkpoints_are_written_periodically(
    replicas: Replicas, mock_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replicas.replica.run)
        partition = replicas.held()
        replicas.produce(partition)
        replicas.replica.end_of_turn()
        await wait_all_tasks_blocked()
        assert partition.log.checkpointed_high_watermark == 0
        mock_clock.jump(CHECKPOINT_SECONDS + 0.1)
        await wait_all_tasks_blocked()
        assert partition.log.checkpointed_high_watermark == 1
        nursery.cancel_scope.cancel()


async def test_a_failed_directory_refuses_writes_and_keeps_high_watermarks(
    tmp_path: Path,
) -> None:
    replicas = Replicas(tmp_path)
    await replicas.service.start()
    waiting = replicas.held("waiting", config=DURABLE)
    tickets = [replicas.produce(waiting)]
    replicas.replica.end_of_turn()
    assert tickets[0].releases == 0, "waits for its sync"
    fine = [replicas.held("t", index) for index in range(3)]
    for partition in fine:
        replicas.produce(partition)
    replicas.replica.end_of_turn()
    assert [partition.high_watermark for partition in fine] == [1, 1, 1]
    tickets += [replicas.produce(waiting), *(replicas.produce(partition) for partition in fine)]
    replicas.faulty.fails_in = 2  # the writes of "waiting" and the first are done
    replicas.service.registry.on_directory_failed = lambda path, error: (
        replicas.replica.on_directory_failed(path)
    )
    replicas.replica.end_of_turn()
    assert replicas.service.directories[tmp_path].failed
    assert [ticket.releases for ticket in tickets] == [1] * 5
    storage = ErrorCode.KAFKA_STORAGE_ERROR
    assert [set(ticket.codes.values()) for ticket in tickets] == [
        {storage},
        {storage},
        set(),
        {storage},
        {storage},
    ]
    assert [(partition.high_watermark, partition.log.log_end_offset) for partition in fine] == [
        (2, 2),
        (1, 1),
        (1, 1),
    ]
    for partition in (waiting, *fine):
        assert not partition.advance()
        assert not partition.acks
        with pytest.raises(MqError) as refused:
            replicas.produce(partition)
        assert refused.value.code is storage
    await replicas.service.close()
