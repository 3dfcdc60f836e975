"""Share groups under faults: is every record accepted, and none delivered after it was accepted?

    python -m chaos.share --seconds 30 --seed 1 [--nodes 3] [--session-ms 3000] [--keep DIR]

Real processes, replication factor 3, min.insync.replicas 2. Producers (acks=all) write records with
keys. Two share groups read them, one of them with `share.key.affinity`. Their members, those of the
simulation (mqd/testing/clients/shares.py), accept, release, reject and renew records, let locks
end, close sessions, crash and leave. Meanwhile the nemesis kills, suspends and restarts nodes. Then
all faults end, the members accept what is left, and the ledger of the simulation checks:

- no record is delivered after a response confirmed that it was accepted or rejected;
- delivery counts do not exceed the limit, and a confirmed release counts;
- start offsets never go back, and every record ends;
- records of one key keep their order.

Whether two members hold a record at the same time is checked in the simulation only: here nobody
knows when a leader began. Exit code 0: all checks passed; 1: a check failed.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import trio

from mqd.client.admin import Admin
from mqd.client.cluster import ClusterClient, connect
from mqd.client.consumer import open_consumer
from mqd.client.descriptions import ConfigChange, ConfigOperation, Resource, ResourceType
from mqd.client.producer import open_producer
from mqd.errors import MqError
from mqd.testing.clients.shares import Shares
from mqd.testing.share_features import ShareFeatures
from mqd.testing.share_ledger import ShareLedger
from mqd.types import TopicPartition

from .ensemble import Ensemble, mqd_ensemble
from .fault_injector import inject_fault
from .nemesis import Step, Target, steps
from .node import NodeFailed, end_on_sigterm
from .program import add_keep, conclude, directory_of, failed
from .workload import TrialFailed

TOPIC, PARTITIONS = "shared", 3
PLAIN, ORDERED = "plain-share", "ordered-share"
LOCK_SECONDS = 2.0
LIMIT = 10
KEYS = 11
PRODUCERS = 2
PAUSE_S = 0.02
"""Mean pause of a producer: the members are slow on purpose."""
DRAIN_TIMEOUT_S = 120.0
HEAL_TIMEOUT_S = 90.0
REQUEST_TIMEOUT_S = 5.0
OPTIONS = (
    "offsets.topic.num.partitions=4",
    "share.coordinator.state.topic.num.partitions=4",
    "group.share.min.record.lock.duration.ms=1000",
    f"group.share.record.lock.duration.ms={round(LOCK_SECONDS * 1000)}",
    f"group.share.delivery.count.limit={LIMIT}",
    "group.share.min.session.timeout.ms=1000",
    "group.share.session.timeout.ms=5000",
    "group.share.min.heartbeat.interval.ms=500",
    "group.share.heartbeat.interval.ms=1000",
    "share.coordinator.snapshot.update.records.per.snapshot=20",
)


@dataclass
class Trial:
    """One seeded run; `run` fills in the results."""

    cluster: Ensemble
    seed: int
    seconds: float
    done: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    ledger: ShareLedger = field(default_factory=lambda: ShareLedger(_latest_wall_ms))
    acknowledged: int = 0
    drain_s: float = 0.0

    @property
    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]

    async def run(self) -> None:
        """Run the whole trial. Raises TrialFailed and NodeFailed."""
        await trio.to_thread.run_sync(self.cluster.start)
        self.cluster.create_topic(TOPIC, PARTITIONS, configs={"retention.ms": "-1"})
        async with trio.open_nursery() as nursery:
            client = await self._connected(nursery, "admin")
            await _configure(client)
            ends: dict[TopicPartition, int] = {}
            shares = self._shares(nursery, lambda partition: ends.get(partition, sys.maxsize))
            async with trio.open_nursery() as writing:
                stopping = trio.Event()
                for number in range(PRODUCERS):
                    writing.start_soon(self._produce, client, number, stopping)
                await trio.to_thread.run_sync(self._inject_faults)
                await trio.to_thread.run_sync(self._heal)
                stopping.set()
            final = await _read_all(client, self.partitions)
            ends |= {partition: len(rows) for partition, rows in final.items()}
            began = trio.current_time()
            with trio.move_on_after(DRAIN_TIMEOUT_S) as scope:
                await shares.drain(client)
            if scope.cancelled_caught:
                raise TrialFailed(f"after {DRAIN_TIMEOUT_S:.0f} s: {shares.missing()}")
            self.drain_s = trio.current_time() - began
            self.violations += map(str, self.ledger.check(shares.groups, final))
            nursery.cancel_scope.cancel()

    async def _connected(self, nursery: trio.Nursery, name: str) -> ClusterClient:
        """A client of the cluster, until the nursery is cancelled."""
        found: ClusterClient = await nursery.start(self._hold, name)
        return found

    async def _hold(self, name: str, *, task_status: trio.TaskStatus[ClusterClient]) -> None:
        async with connect(
            self.cluster.bootstrap,
            client_id=name,
            request_timeout_s=REQUEST_TIMEOUT_S,
            wait_s=HEAL_TIMEOUT_S,
        ) as client:
            task_status.started(client)
            await trio.sleep_forever()

    def _shares(self, nursery: trio.Nursery, end_of: Callable[[TopicPartition], int]) -> Shares:
        self.ledger.limit, self.ledger.ordered = LIMIT, frozenset({ORDERED})
        shares = Shares(
            ledger=self.ledger,
            new_client=partial(self._connected, nursery),
            source=lambda purpose: random.Random(f"{self.seed}/{purpose}"),
            end_of=end_of,
            term=lambda _node, _partition: None,
            lock_seconds=LOCK_SECONDS,
            wall_between=_wall_between,
            features=ShareFeatures(),
        )
        shares.start(nursery, self.partitions, [PLAIN, ORDERED])
        return shares

    async def _produce(self, client: ClusterClient, number: int, stopping: trio.Event) -> None:
        chance = random.Random(f"{self.seed}/producer{number}")
        count = 0
        async with open_producer(
            client, acks="all", delivery_timeout_s=DRAIN_TIMEOUT_S
        ) as producer:
            while not stopping.is_set():
                partition = chance.choice(self.partitions)
                count += 1
                try:
                    await producer.send(
                        TOPIC,
                        b"%d.%d" % (number, count),
                        key=b"%d" % (count % KEYS),
                        partition=partition.partition,
                    )
                except MqError as error:
                    self.violations.append(f"producer {number} gave up: {error}")
                    return
                self.acknowledged += 1
                await trio.sleep(chance.expovariate(1 / PAUSE_S))

    # -- faults, in a thread

    def _inject_faults(self) -> None:
        deadline = time.monotonic() + self.seconds
        for step in steps(self.seed, self.cluster.session_ms / 1000):
            if time.monotonic() + step.before_s + step.down_s > deadline:
                return
            time.sleep(step.before_s)
            victims = self._victims(step)
            inject_fault(self.cluster, step, victims)
            self.done[step.name] += 1
            print(f"  {step.name} (node {', '.join(map(str, victims))})", file=sys.stderr)

    def _victims(self, step: Step) -> list[int]:
        running = self.cluster.running
        if step.target is Target.ALL:
            return running
        named: set[int | None] = set()
        if step.target in (Target.LEADER, Target.LEADER_AND_CONTROLLER):
            named.add(self.cluster.leader(TOPIC, int(step.choice * PARTITIONS)))
        if step.target in (Target.CONTROLLER, Target.LEADER_AND_CONTROLLER):
            named.add(self.cluster.controller())
        chosen = sorted(
            node_id
            for node_id in named
            if node_id is not None and self.cluster.nodes[node_id].running
        )
        return chosen or [running[int(step.choice * len(running))]]

    def _heal(self) -> None:
        for node in self.cluster.nodes.values():
            node.wait_ready()
        self.cluster.wait_until(
            lambda: self.cluster.is_whole({TOPIC: PARTITIONS}),
            "a full ISR after the heal",
            HEAL_TIMEOUT_S,
        )

    def summary(self) -> str:
        ledger = self.ledger
        faults = ", ".join(f"{name} {count}" for name, count in sorted(self.done.items()))
        return (
            f"faults: {faults}\n{self.acknowledged} records; {ledger.deliveries} deliveries, "
            f"{ledger.redeliveries} of them again; {ledger.confirmed} acknowledgements and "
            f"{ledger.renewed} renewals confirmed, {ledger.refused} refused; all finished "
            f"{self.drain_s:.1f} s after the heal; violations {len(self.violations)}"
        )


def _latest_wall_ms(since: float, until: float) -> int:
    """The latest wall time of any node between these times of Trio's clock."""
    return _wall_between(0, since, until)[1]


def _wall_between(_node: int, since: float, until: float) -> tuple[int, int]:
    """The wall times in ms of these times of Trio's clock: all nodes have this machine's clock."""
    offset = time.time() - trio.current_time()
    return math.floor(1000 * (since + offset)) - 1, math.ceil(1000 * (until + offset)) + 1


async def _configure(client: ClusterClient) -> None:
    """The groups read from the first record on."""
    values = {
        group: {
            "share.auto.offset.reset": "earliest",
            "share.key.affinity": str(group == ORDERED).lower(),
        }
        for group in (PLAIN, ORDERED)
    }
    await Admin(client, timeout_s=30.0).alter_configs(
        {
            Resource(ResourceType.GROUP, group): [
                ConfigChange(name, ConfigOperation.SET, value) for name, value in rows.items()
            ]
            for group, rows in values.items()
        }
    )


async def _read_all(
    client: ClusterClient, partitions: list[TopicPartition]
) -> dict[TopicPartition, list[tuple[int, bytes]]]:
    found: dict[TopicPartition, list[tuple[int, bytes]]] = {one: [] for one in partitions}
    async with open_consumer(
        client, dict.fromkeys(partitions, 0), end="end", max_wait_ms=100
    ) as consumer:
        while (batch := await consumer.next()) is not None:
            found[TopicPartition(batch.topic, batch.partition)] += [
                (record.offset, record.value or b"") for record in batch.records
            ]
    return found


def main() -> int:
    """Parse the command line, run the trial, print the result."""
    parser = argparse.ArgumentParser(
        prog="python -m chaos.share", description="share groups under faults"
    )
    parser.add_argument("--nodes", type=int, default=3, help="nodes (3)")
    parser.add_argument("--seconds", type=float, default=60, help="of faults (60)")
    parser.add_argument("--seed", type=int, default=1, help="of faults and members (1)")
    parser.add_argument(
        "--session-ms",
        type=int,
        default=3000,
        help="broker session timeout, with six heartbeats in it (3000)",
    )
    add_keep(parser)
    arguments = parser.parse_args()
    replay = (
        f"python -m chaos.share --nodes {arguments.nodes} --seconds {arguments.seconds:g} "
        f"--seed {arguments.seed} --session-ms {arguments.session_ms}"
    )
    end_on_sigterm()
    with directory_of(arguments.keep, "share-") as directory:
        cluster = mqd_ensemble(
            directory, arguments.nodes, session_ms=arguments.session_ms, options=OPTIONS
        )
        trial = Trial(cluster, arguments.seed, arguments.seconds)
        errors: list[Exception] = []
        try:
            trio.run(trial.run)
        except* (TrialFailed, NodeFailed) as group:
            errors += group.exceptions
        finally:
            cluster.kill()
    if errors:
        return failed(errors[0], trial.violations, again=replay)
    return conclude(trial.summary(), trial.violations, again=replay)


if __name__ == "__main__":
    sys.exit(main())
