"""SealTransactions (key 32003), version 0: prepared transactions take no more records here
(KIP-939). Peer listener only.

The response waits until the seals are committed, so that later leaders of the partition have them.
Seals for `__consumer_offsets` go through the group coordinator, which knows where its log ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trio

from mqd.coordinator.shard import Producer
from mqd.errors import ErrorCode, MqError
from mqd.replica import sealing
from mqd.server.context import Context, Node
from mqd.server.handlers.write_txn_markers import COMMIT_SECONDS, NOT_LED, CommitTicket, by_topic
from mqd.server.partitions import leading
from mqd.types import GROUPS_TOPIC

Codes = dict[tuple[str, int], int]
"""(topic, partition) -> error code."""


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    return await seal(context.node, request)


async def seal(node: Node, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """As the API declares it, also for this node's own coordinator; nothing is raised."""
    found: list[tuple[int, Codes]] = []
    ticket = CommitTicket(node.clock.monotonic() + COMMIT_SECONDS)
    now_ms = node.clock.wall_ms()
    async with trio.open_nursery() as nursery:
        for row in request["seals"]:
            producer, coordinator_epoch = (
                Producer(row["producer_id"], row["producer_epoch"]),
                row["coordinator_epoch"],
            )
            codes: Codes = {}
            found.append((producer.producer_id, codes))
            for place in [
                (topic["name"], index)
                for topic in row["topics"]
                for index in topic["partition_indexes"]
            ]:
                codes[place] = int(ErrorCode.NONE)
                if place[0] == GROUPS_TOPIC:
                    nursery.start_soon(
                        _seal_offsets, node, place[1], producer, coordinator_epoch, codes
                    )
                    continue
                try:
                    partition = leading(node, *place)
                    end = sealing.append_seal_nowait(
                        node.replica.append_nowait, partition, producer, coordinator_epoch, now_ms
                    )
                except MqError as error:
                    codes[place] = int(error.code)
                else:
                    ticket.appends.append((partition, end, [codes, place], 0))
        if ticket.appends:
            node.replica.wait_committed(ticket)
            node.replica.end_of_turn()
            await ticket.committed.wait()
    return {
        "seals": [
            {"producer_id": producer_id, "topics": by_topic(codes)} for producer_id, codes in found
        ]
    }


async def _seal_offsets(
    node: Node, index: int, producer: Producer, coordinator_epoch: int, codes: Codes
) -> None:
    try:
        await node.groups.write_seal(index, producer, coordinator_epoch)
    except MqError as error:
        codes[GROUPS_TOPIC, index] = int(NOT_LED.get(error.code, error.code))
