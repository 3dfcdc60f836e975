"""Defects of topics in memory, and of topics with one producer at a time. Runs with the load
`queues` must find them.
"""

from __future__ import annotations

from typing import Any

from mqd.controller.topic_claims import ownership
from mqd.log.manager.reading import Reader
from mqd.log.partition_log import PartitionLog
from mqd.node import lost_in_memory
from mqd.server import coordinators, producer_access
from mqd.server.handlers import add_partitions_to_txn
from mqd.server.producer_access import _Admission
from tests.sim.planting import Patches, bug


@bug("consumers of a topic in memory are served beyond the high watermark", load="queues")
def memory_topics_serve_uncommitted() -> Patches:
    original = Reader.read

    def read(
        self: Reader, log: PartitionLog, offset: int, *, limit_offset: int, **rest: Any
    ) -> Any:
        if log.config.memory_bytes:
            limit_offset = log.written_end_offset
        return original(self, log, offset, limit_offset=limit_offset, **rest)

    yield Reader, "read", read


@bug("a lost log in memory begins again at the offsets of its earlier records", load="queues")
def lost_offsets_used_again() -> Patches:
    yield lost_in_memory, "first_offset", lambda leader_epoch: 0


@bug("the former owners of a topic are not fenced, and may write", load="queues")
def former_owners_not_fenced() -> Patches:
    original, owners = producer_access.refusal, set()

    async def fence(self: _Admission, former: str) -> None:
        pass

    def refusal(image: Any, topic: str, transactional_id: str) -> Any:
        owners.add((topic, ownership(image, topic).owner))
        is_known = (topic, transactional_id) in owners
        return None if is_known else original(image, topic, transactional_id)

    yield _Admission, "_fence", fence
    yield producer_access, "refusal", refusal
    yield coordinators, "refusal", refusal


@bug("a topic with one producer at a time takes the transactions of any", load="queues")
def any_producer_admitted() -> Patches:
    async def admit(*_: Any) -> None:
        pass

    yield add_partitions_to_txn, "admit", admit
    yield coordinators, "refusal", lambda image, topic, transactional_id: None
