"""The options of all nodes of one run."""

from __future__ import annotations

import random

from mqd.testing.faults.plan import Mode
from mqd.testing.thresholds import draw_thresholds

OPTIONS = {
    "broker.session.timeout.ms": "600",
    "broker.heartbeat.interval.ms": "200",
    "replica.lag.time.max.ms": "1500",
    "replica.high.watermark.checkpoint.interval.ms": "500",
    "replica.fetch.wait.max.ms": "400",
    "auto.create.topics.enable": "false",
}
TWO_PHASE = "transaction.two.phase.commit.enable"
COORDINATORS_MIN_INSYNC = 2
"""min.insync.replicas of the coordinators' topics, which have no own configuration."""
COORDINATOR_PARTITIONS = 2
COORDINATOR_OPTIONS = {
    "min.insync.replicas": str(COORDINATORS_MIN_INSYNC),
    "offsets.topic.num.partitions": str(COORDINATOR_PARTITIONS),
    "transaction.state.log.num.partitions": str(COORDINATOR_PARTITIONS),
    "group.initial.rebalance.delay.ms": "50",
    "group.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": "1500",
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.assignment.interval.ms": "100",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
"""Additional options for groups and transactions: few partitions, because each costs time, and
short timers, because a run takes seconds.
"""

SHARE_LOCK_SECONDS = 1.0
"""The lock duration of all share groups: the shortest one that Apache Kafka allows."""
SHARE_OPTIONS = {
    "share.coordinator.state.topic.num.partitions": str(COORDINATOR_PARTITIONS),
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.record.lock.duration.ms": str(round(SHARE_LOCK_SECONDS * 1000)),
    "group.share.min.session.timeout.ms": "500",
    "group.share.session.timeout.ms": "1500",
    "group.share.min.heartbeat.interval.ms": "100",
    "group.share.heartbeat.interval.ms": "300",
    "group.share.assignment.interval.ms": "100",
}
DELIVERY_LIMIT = "group.share.delivery.count.limit"


def _draw_share_options(chance: random.Random) -> dict[str, str]:
    """Limits that some seeds reach often, and others never."""
    return SHARE_OPTIONS | {
        DELIVERY_LIMIT: chance.choice(["2", "3", "5", "10"]),
        "group.share.partition.max.record.locks": chance.choice(["100", "2000"]),
        "share.coordinator.snapshot.update.records.per.snapshot": chance.choice(["3", "20", "500"]),
    }


def draw_options(
    chance: random.Random, load: str, mode: Mode, *, is_hostile: bool
) -> dict[str, str]:
    """The fixed options of this load, and the random thresholds of the seed."""
    options = OPTIONS | draw_thresholds(chance, tiny=is_hostile, floods=load == "hostile")
    if load == "plain":
        return options
    flush = {"log.flush.before.ack": "true"} if mode is Mode.POWER_ALL else {}
    two_phase = {TWO_PHASE: "true"} if load == "prepare" else {}
    shares = _draw_share_options(chance) if load == "share" else {}
    return options | COORDINATOR_OPTIONS | flush | two_phase | shares
