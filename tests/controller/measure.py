"""Metadata of 10,000 partitions (RF 3 on 3 nodes): python -m tests.controller.measure

Prints milliseconds of CPU, so that other load on the machine does not count: deciding and applying
the creation, a snapshot and its load, the failure of one node portion by portion (which blocks a
node's loop), its return, and the deletion.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from time import thread_time
from typing import Any, TypeVar

from mqd.controller.brokers import ExpireSessions, Heartbeat, decide_expire, decide_heartbeat
from mqd.controller.commands import Command, encode_command, split_records
from mqd.controller.create_topics import CreateTopics, decide_create_topics
from mqd.controller.decision_options import DecisionOptions
from mqd.controller.delete_topics import DeleteTopics, TopicName, decide_delete_topics
from mqd.controller.isr import AlterPartitions, IsrChangeRequest, decide_alter_partitions
from mqd.controller.machine import MetadataMachine
from mqd.controller.snapshot import encode_snapshot
from mqd.controller.sweeps import ReviewPartitions, decide_review_partitions
from mqd.types import NodeId
from tests.controller.cluster import Replica, new_topic, with_brokers

ResultT = TypeVar("ResultT")
OPTIONS = DecisionOptions(min_insync_replicas=2)


def timed(call: Callable[[], ResultT]) -> tuple[float, ResultT]:
    begun = thread_time()
    result = call()
    return (thread_time() - begun) * 1000, result


def carry_out(replica: Replica, what: str, decide: Any, op: Any) -> None:
    """Each portion is decided, encoded and applied as the controller does it between two
    checkpoints.
    """
    decisions, applications, sizes = [], [], []
    while True:
        took, decision = timed(lambda: decide(replica.image, op, OPTIONS))
        decisions.append(took)
        for run in split_records(decision.records) if decision.records else ():
            took, command = timed(partial(encode_command, Command(replica.image.index, run)))
            decisions[-1] += took
            replica.index += 1
            took, _ = timed(partial(replica.machine.apply, replica.index, command))
            applications.append(took)
            sizes.append(len(command))
        if not decision.more:
            break
    print(
        f"{what:<28} commands={len(sizes)} bytes={sum(sizes)} decide "
        f"total={sum(decisions):.0f} max={max(decisions):.0f} ms; "
        f"apply total={sum(applications):.0f} max={max(applications, default=0):.0f} ms"
    )


def main() -> None:
    gc.freeze()
    one, many = [new_topic("t", 10_000, 3)], [new_topic(f"t{n}", 10, 3) for n in range(1000)]
    for label, topics in (("one topic of 10,000", one), ("1,000 topics of 10", many)):
        print(label)
        replica = with_brokers(1, 2, 3)
        carry_out(replica, "create", decide_create_topics, CreateTopics(tuple(topics), 1, 3))
        took, snapshot = timed(partial(encode_snapshot, replica.image))
        print(f"{'snapshot':<28} bytes={len(snapshot)} {took:.0f} ms")
        took, _ = timed(partial(MetadataMachine().restore, snapshot))
        print(f"{'load':<28} {took:.0f} ms")
        broker = replica.image.brokers[NodeId(1)]
        carry_out(
            replica,
            "node 1 fails",
            decide_expire,
            ExpireSessions(((broker.node_id, broker.epoch),)),
        )
        carry_out(
            replica,
            "node 1 comes back",
            decide_heartbeat,
            Heartbeat(broker.node_id, broker.epoch, replica.index),
        )
        changes = tuple(
            IsrChangeRequest(
                topic.topic_id,
                index,
                partition.leader_epoch,
                partition.partition_epoch,
                tuple((NodeId(n), -1) for n in (1, 2, 3)),
            )
            for topic in replica.image.topics.values()
            for index, partition in enumerate(topic.partitions)
            if partition.leader == 2
        )
        op = AlterPartitions(NodeId(2), replica.image.brokers[NodeId(2)].epoch, changes)
        carry_out(replica, f"leader 2 takes {len(changes)} back", decide_alter_partitions, op)
        carry_out(replica, "a look at everything", decide_review_partitions, ReviewPartitions())
        carry_out(
            replica,
            "delete",
            decide_delete_topics,
            DeleteTopics(tuple(TopicName(topic.name) for topic in topics)),
        )


if __name__ == "__main__":
    main()
