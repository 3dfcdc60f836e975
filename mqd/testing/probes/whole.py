"""Compares all live nodes completely: images, accounts, bytes and producers."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from mqd.controller.size import recount, recount_access, recount_groups
from mqd.controller.snapshot import encode_snapshot
from mqd.coordinator.group.shard import GroupShard
from mqd.coordinator.txn.shard import TransactionShard
from mqd.daemon import Daemon
from mqd.protocol.batch import validate
from mqd.testing.probes.shadows import Key, Shadow, World, file_name
from mqd.testing.violation import Violation

Live = Mapping[int, Daemon]
"""Node id -> its live process."""


def validate_all(world: World, live: Live, shadows: Mapping[Key, Mapping[int, Shadow]]) -> None:
    """Raises Violation."""
    _validate_images(live)
    _validate_accounts(live)
    for key, replicas in shadows.items():
        _validate_partition(world, live, key, replicas)


def _validate_images(live: Live) -> None:
    by_index: dict[int, tuple[int, bytes]] = {}
    for node_id, daemon in live.items():
        image = daemon.machine.image
        other, snapshot = by_index.setdefault(image.index, (node_id, encode_snapshot(image)))
        if snapshot != encode_snapshot(image):
            raise Violation(
                f"I10: nodes {other} and {node_id} have different images at index {image.index}"
            )
        sizes = image.size, image.groups_size, image.access_size
        if sizes != (recount(image), recount_groups(image), recount_access(image)):
            raise Violation(
                f"I45: node {node_id} counts {image.size} bytes of metadata, a recount "
                f"{recount(image)}"
            )


def _validate_accounts(live: Live) -> None:
    for node_id, daemon in live.items():
        for coordinator in (daemon.coordinators.groups, daemon.coordinators.transactions):
            for shard in coordinator.shards():
                assert isinstance(shard, GroupShard | TransactionShard)
                if shard.account.exact != shard.recount():
                    found = (
                        f"counts {shard.account.exact} bytes in {shard.account.name}, "
                        f"a recount {shard.recount()}"
                    )
                    raise Violation(f"I46: node {node_id} {found}")


def _validate_partition(world: World, live: Live, key: Key, shadows: Mapping[int, Shadow]) -> None:
    held: dict[int, Any] = {}
    for node_id, daemon in live.items():
        partition = daemon.replica.by_id.get(key[0].bytes, {}).get(key[1])
        if partition is not None and not partition.log.queue:
            held[node_id] = partition
    for node_id, partition in held.items():
        _validate_bytes(world, node_id, partition, shadows[node_id])
    for (a, first), (b, second) in pairwise(sorted(held.items(), key=lambda row: row[0])):
        _validate_producers(a, first, b, second)


def _validate_bytes(world: World, node_id: int, partition: Any, shadow: Shadow) -> None:
    """Check the CRC of each batch below the high watermark. It covers all bytes that the shadow
    does not compare.
    """
    log = partition.log
    if shadow.set_aside:
        return
    suffixes = {segment.base_offset: segment.suffix for segment in log.segments}
    for batch, (segment, position) in zip(shadow.batches, shadow.places, strict=True):
        if (
            batch.next_offset > partition.high_watermark
            or segment < 0
            or batch.next_offset <= log.log_start_offset
        ):
            continue
        data = world.contents(node_id, log.path / file_name(segment, suffixes.get(segment, "")))
        if not data:
            continue  # removed by retention
        try:
            validate(memoryview(data), position)
        except Exception as error:
            raise Violation(
                f"bytes of {log.topic_partition} on node {node_id} at offset "
                f"{batch.base_offset}: {error}"
            ) from error


def _validate_producers(a: int, first: Any, b: int, second: Any) -> None:
    """Two replicas with the same end must have the same last batch of each producer (I7)."""
    logs = first.log, second.log
    if (
        logs[0].log_end_offset != logs[1].log_end_offset
        or logs[0].epochs.latest != logs[1].epochs.latest
    ):
        return
    known = [{row.producer_id: row[:5] for row in log.producers.entries()} for log in logs]
    if known[0] != known[1]:
        raise Violation(
            f"I7: nodes {a} and {b} know other producers of {logs[0].topic_partition}: "
            f"{known[0]} and {known[1]}"
        )
