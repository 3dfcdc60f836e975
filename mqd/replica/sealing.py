"""Seals of prepared transactions (KIP-939): after the seal, the producer's epoch cannot append, and
the transaction stays open until its marker arrives.
"""

from __future__ import annotations

from collections.abc import Callable

from mqd.log.appending import Appended
from mqd.protocol.markers import build_transaction_seal
from mqd.replica.partition import Partition
from mqd.types import Offset


def append_seal_nowait(
    append: Callable[..., Appended],
    partition: Partition,
    producer: tuple[int, int],
    coordinator_epoch: int,
    now_ms: int,
) -> Offset:
    """Queue the seal of a transaction of `producer` (id, epoch above that of its records), if the
    transaction has records here.

    `append`: `ReplicaService.append_nowait`. The partition is sealed when everything below the
    returned offset is committed. Raises MqError as `append` with acks=-1 does, and those of
    `Producers.may_seal`.
    """
    partition.check_append(-1)
    producers = partition.log.producers
    if not producers.may_seal(*producer, coordinator_epoch):
        # A batch that arrives later must not use a permission from before the preparation.
        producers.guards.pop(producer[0], None)
        return Offset(partition.log.log_end_offset)
    seal = build_transaction_seal(*producer, coordinator_epoch, now_ms)
    return Offset(append(partition, memoryview(seal), -1, now_ms, client=False).last_offset + 1)
