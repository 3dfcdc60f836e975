"""One seed, one run: a cluster under faults and load, then healed, then judged.

A run has a safety phase (faults, produce and consume load, administration, probes after every
event), a liveness phase (everything heals; within `CONVERGE_SECONDS` of virtual time there must be
a controller, every partition must have its leader and all its replicas in sync, every producer an
acknowledgement, every consumer everything), and a verdict: the checker on what clients were told,
the probes on every byte, and the metadata on what administration was told. `run_seed` returns what
happened; nothing is raised for a violation, so that a thousand seeds go on.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import trio

from mqd.client.admin import Admin
from mqd.client.cluster import ClusterClient
from mqd.client.coordinator import Coordinator, KeyType
from mqd.client.group_consumer import GroupConsumer
from mqd.client.nurseries import on_crash
from mqd.errors import MqError
from mqd.testing.checker import History, Outcome
from mqd.testing.clients import owned
from mqd.testing.cluster import Cluster
from mqd.testing.coverage import Coverage
from mqd.testing.faults import (
    COORDINATORS_MIN_INSYNC,
    SHORTENED,
    THROWAWAY,
    Administration,
    Mode,
    Nemesis,
    Plan,
)
from mqd.testing.group_ledger import GroupLedger
from mqd.testing.groups import Groups
from mqd.testing.hostile import Hostile
from mqd.testing.ledger import Ledger
from mqd.testing.plots import Plots, draw_plot
from mqd.testing.probes.groups import GroupProbe
from mqd.testing.probes.probes import Probes
from mqd.testing.thresholds import draw_price, draw_thresholds
from mqd.testing.transactions import TOPIC, Transactional
from mqd.testing.two_phase import TwoPhase
from mqd.testing.workload import Workload
from mqd.testing.world import current_world, run
from mqd.types import GROUPS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition

SECONDS_OF_SAFETY = 8.0
CONVERGE_SECONDS = 30.0
"""Virtual time after the end of all faults within which the cluster must be whole, and
every client served.
"""
DRAIN_SECONDS_MAX = 10 * CONVERGE_SECONDS
"""Virtual time after which consumers and copies must be at the end, whether they advance or not."""
FORM_SECONDS = 20.0
VALIDATE_EVERY_SECONDS = 2.0
LOOK_SECONDS = 0.1
REPLICAS = 3
OPTIONS = {
    "broker.session.timeout.ms": "600",
    "broker.heartbeat.interval.ms": "200",
    "replica.lag.time.max.ms": "1500",
    "replica.high.watermark.checkpoint.interval.ms": "500",
    "replica.fetch.wait.max.ms": "400",
    "auto.create.topics.enable": "false",
}
TWO_PHASE = "transaction.two.phase.commit.enable"
COPIED = "a"
"""The topic whose copy is made in transactions."""
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
"""Besides, where there are groups and transactions: few partitions, for each costs time,
and timers of a run of seconds.
"""
LOADS = ("plain", "copy", "groups", "all", "prepare", "hostile")
"""What clients do: produce and consume; and besides, transactions and the copy of a topic; groups
that read; both; two-phase commits; or attacks (hostile.py), which fill coordinators, too, that
nobody else uses.
"""
_LIKELIHOODS = (0.42, 0.15, 0.13, 0.08, 0.1, 0.12)
_ALSO_HOSTILE = 0.15
"""Of a seed of another load to have a hostile client besides."""
BUSY_SECONDS_MAX = 0.1
"""No request and no turn may keep the event loop of a node for longer, whatever clients send."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What is to be run. The same settings give the same run."""

    seed: int
    nodes: int = 3
    observers: int = 0
    """Nodes beside these that do not vote."""
    seconds: float = SECONDS_OF_SAFETY
    bug: str | None = None
    plot: str | None = None
    """Played whatever the seed would (plots.py)."""
    load: str | None = None
    """One of LOADS, whatever the seed would."""

    @property
    def command(self) -> str:
        """Runs this seed again, alone, with its trace in a file."""
        seconds = "" if self.seconds == SECONDS_OF_SAFETY else f" --seconds {self.seconds:g}"
        bug = f" --bug {self.bug}" if self.bug else ""
        bug += f" --plot {self.plot}" if self.plot else ""
        bug += f" --load {self.load}" if self.load else ""
        observers = f" --observers {self.observers}" if self.observers else ""
        return (
            f"python -m mqd.testing --seeds {self.seed} --nodes "
            f"{self.nodes}{observers}{seconds}{bug} --trace trace-{self.seed}.txt"
        )


@dataclass(slots=True)
class Result:
    """What became of one seed. Plain values: it travels between processes."""

    settings: Settings
    violations: list[str] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)
    """The last lines of the trace, of a run with violations."""
    digest: str = ""
    events: int = 0
    simulated_seconds: float = 0.0
    real_seconds: float = 0.0
    converged_after: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)


REQUEST_SECONDS = 2.0


async def _client(cluster: Cluster, name: str) -> ClusterClient:
    return await cluster.client(name, request_timeout_s=REQUEST_SECONDS, wait_s=FORM_SECONDS)


class _Ended(Exception):
    """The run is over before its end: a probe found something, or it did not converge."""


def run_seed(settings: Settings, trace: Path | None = None) -> Result:
    """Run one seed to its verdict. With `trace`, every line of the trace goes to that file."""
    result = Result(settings)
    began = time.perf_counter()
    lines: list[str] | None = [] if trace is not None else None
    crashes: list[BaseException] = []
    watching = on_crash.set(crashes.append)
    try:
        run(
            partial(_Run(settings, result, lines).main),
            seed=settings.seed,
            log_level="CRITICAL" if trace is None else "INFO",
        )
    except Exception as error:
        if (text := _told(error)) is not None:
            result.violations.append(text)
    finally:
        on_crash.reset(watching)
        result.violations += [f"a client crashed: {_told(crash)}" for crash in crashes]
        result.real_seconds = time.perf_counter() - began
        if trace is not None and lines is not None:
            trace.write_text("".join(f"{line}\n" for line in lines))
    return result


def _told(error: BaseException) -> str | None:
    """An exception, with what is in its groups and where it came from, in a line; None for
    what is told already.
    """
    if isinstance(error, _Ended):
        return None
    if isinstance(error, BaseExceptionGroup):
        return (
            "; ".join(text for one in error.exceptions if (text := _told(one)) is not None) or None
        )
    frames: list[str] = []
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if "/mqd/" in code.co_filename:
            frames.append(
                f"{code.co_filename.rpartition('/mqd/')[2]}:{traceback.tb_lineno} {code.co_name}"
            )
        traceback = traceback.tb_next
    return f"{type(error).__name__}: {error} [{' < '.join(reversed(frames[-6:]))}]"


class _Run:
    """The parts of one run."""

    def __init__(self, settings: Settings, result: Result, lines: list[str] | None) -> None:
        self.settings = settings
        self.result = result
        self.lines = lines
        self.chance = random.Random(f"{settings.seed}/plan")
        self.plan = Plan.draw(self.chance)
        self.plot = settings.plot or draw_plot(self.plan.mode, self.source("plot"))
        self.load = settings.load or self.source("load").choices(LOADS, _LIKELIHOODS)[0]
        self.history = History()
        self.ledger = Ledger()
        self.transactional: Transactional | None = None
        self.two_phase: TwoPhase | None = None
        self.group_ledger = GroupLedger()
        self.groups: Groups | None = None
        self.hostile: Hostile | None = None
        self.is_hostile = self.load == "hostile" or self.source("hostile").random() < _ALSO_HOSTILE
        self.scope = trio.CancelScope()
        self.coverage = Coverage()

    def source(self, purpose: str) -> random.Random:
        return random.Random(f"{self.settings.seed}/{purpose}")

    async def main(self) -> None:
        world = current_world()
        if self.lines is not None:
            world.trace.write_to = self.lines
        try:
            options = self._options()
            async with Cluster(
                nodes=self.settings.nodes,
                observers=self.settings.observers,
                options=options,
                start=False,
            ) as cluster:
                voters = tuple(range(1, self.settings.nodes + 1))
                self.probes = Probes(
                    cluster, tuple(sorted(cluster.nodes)), voters=voters, may_lose=self._may_lose
                )
                self.probes.on_violation = self.scope.cancel
                self.probes.on_restart = self._restarted
                self.probes.on_life = self.coverage.begin_life
                cluster.on_event(self.probes.look)
                cluster.price_work(
                    draw_price(
                        self.source("price"),
                        coordinated=self.load not in ("plain", "hostile"),
                        floods=self.load == "hostile",
                    )
                )
                with self.scope:
                    await cluster.start()
                    await self._phases(cluster)
                if self.probes.violation is not None:
                    self.result.violations.append(self.probes.violation)
                if cluster.longest_busy_seconds > BUSY_SECONDS_MAX:
                    self.result.violations.append(
                        "the event loop of a node was busy for "
                        f"{cluster.longest_busy_seconds:.3f} s"
                    )
                self.result.counts["longest_busy_ms"] = round(cluster.longest_busy_seconds * 1000)
        finally:
            self.result.digest = world.trace.digest
            self.result.events = world.steps.steps
            self.result.simulated_seconds = world.seconds
            self._count()
            if self.result.violations:
                self.result.tail = list(world.trace.lines)[-60:]

    def _options(self) -> dict[str, str]:
        options = OPTIONS | draw_thresholds(
            self.source("thresholds"), tiny=self.is_hostile, floods=self.load == "hostile"
        )
        if self.load == "plain":
            return options
        flush = {"log.flush.before.ack": "true"} if self.plan.mode is Mode.POWER_ALL else {}
        two_phase = {TWO_PHASE: "true"} if self.load == "prepare" else {}
        return options | COORDINATOR_OPTIONS | flush | two_phase

    def _restarted(self, node_id: int) -> None:
        self.history.restarted(node_id)
        self.ledger.restarted(node_id)

    def _may_lose(self, topic: str) -> bool:
        """Topics of administration have no `flush.before.ack`, so a power cut of all their
        replicas may take what they hold.
        """
        return topic == SHORTENED or (
            topic.startswith(THROWAWAY) and self.plan.mode is Mode.POWER_ALL
        )

    async def _phases(self, cluster: Cluster) -> None:
        partitions = await self._form(cluster)
        checked = (
            partitions
            if self.load in ("plain", "hostile")
            else partitions + await self._form_transactions(cluster)
        )
        workload = Workload(
            history=self.history,
            new_client=partial(_client, cluster),
            source=self.source,
            is_committed=self.probes.is_committed,
            clock=cluster.clock,
        )
        self.workload = workload
        client = await _client(cluster, "admin")
        async with trio.open_nursery() as nursery:
            nemesis = self.nemesis = Nemesis(
                cluster, self.probes, self.plan, self.source("faults"), nursery, checked
            )
            administration = self.administration = Administration(
                client,
                self.plan,
                self.source("admin"),
                sorted(cluster.nodes),
                checked,
                cluster.clock.wall_ms,
            )
            workload.start(
                nursery,
                partitions,
                own=self.chance.choice([1, 2]),
                raw=self.chance.choice([1, 2]),
                hasty=1,
            )
            if self.load not in ("plain", "hostile"):
                self._start_coordinated(
                    cluster,
                    nursery,
                    partitions,
                    [place for place in checked if place.topic == TOPIC],
                )
            if self.plot is not None:
                self.plots = Plots(
                    self.plot, nemesis, administration, workload, self.source("play")
                )
                nemesis.beside = self.plots.run
            nursery.start_soon(nemesis.run)
            with trio.move_on_after(self.settings.seconds):
                async with trio.open_nursery() as beside:
                    beside.start_soon(administration.run)
                    beside.start_soon(administration.shorten)
                    beside.start_soon(self._validate_now_and_then)
                    if self.is_hostile:
                        beside.start_soon(self._attack, cluster)
            await nemesis.heal()
            await self._converge(cluster, nemesis, workload, partitions)
            await self._end_coordinated(client)
            self.probes.validate()
            with trio.fail_after(CONVERGE_SECONDS):
                final = await workload.read_everything(client, partitions)
            self.result.violations += [str(anomaly) for anomaly in self.history.check(final)]
            if self.transactional is not None:
                await self._judge_transactions(client, self.transactional, final)
            if self.groups is not None:
                offsets = {
                    partition: [offset for offset, _ in log] for partition, log in final.items()
                }
                found = self.group_ledger.check(self.groups.committed, offsets)
                self.result.violations += [str(anomaly) for anomaly in found]
            self._check_metadata(cluster, nemesis.newest_image())
            nursery.cancel_scope.cancel()

    async def _attack(self, cluster: Cluster) -> None:
        connects = {
            node_id: partial(
                cluster.client_network(f"hostile{node_id}").connect, node.host, node.port
            )
            for node_id, node in sorted(cluster.peers.nodes.items())
        }
        self.hostile = Hostile(
            connects, COPIED, self.source("attacks"), floods=self.load == "hostile"
        )
        await self.hostile.run()

    async def _form(self, cluster: Cluster) -> list[TopicPartition]:
        """The topics whose records must survive: three replicas, two of them in sync."""
        segment_ms = self.chance.choice([300, 2000, 60_000])
        flush = self.plan.mode is Mode.POWER_ALL or self.chance.random() < 0.2
        min_insync = 2 if self.plan.mode is not Mode.KILL else self.chance.choice([1, 2, 2])
        configs = {
            "min.insync.replicas": str(min_insync),
            "segment.ms": str(segment_ms),
            "retention.ms": "-1",
            "flush.before.ack": str(flush).lower(),
        }
        topics = {COPIED: self.chance.choice([1, 2]), "b": self.chance.choice([1, 3])}
        return await self._make(cluster, topics, configs)

    async def _form_transactions(self, cluster: Cluster) -> list[TopicPartition]:
        """The topic that is written in transactions, and those of the coordinators, which
        are made when somebody asks for them.
        """
        choose = self.source("topics")
        configs = {
            "min.insync.replicas": "2",
            "segment.ms": choose.choice(["300", "2000", "60000"]),
            "retention.ms": "-1",
            "flush.before.ack": str(self.plan.mode is Mode.POWER_ALL).lower(),
        }
        partitions = await self._make(cluster, {TOPIC: choose.choice([1, 2])}, configs)
        client = await _client(cluster, "asker")
        try:
            for kind, topic in (
                (KeyType.GROUP, GROUPS_TOPIC),
                (KeyType.TRANSACTION, TRANSACTIONS_TOPIC),
            ):
                await Coordinator(client, "anybody", kind).wait_connection(
                    "forming", timeout_s=FORM_SECONDS
                )
                partitions += [
                    TopicPartition(topic, number) for number in range(COORDINATOR_PARTITIONS)
                ]
        except MqError as error:
            raise self._violation(f"no coordinator within {FORM_SECONDS:g} s: {error}") from error
        return partitions

    async def _make(
        self, cluster: Cluster, topics: dict[str, int], configs: dict[str, str]
    ) -> list[TopicPartition]:
        try:
            with trio.fail_after(FORM_SECONDS):
                admin = Admin(await _client(cluster, "maker"), timeout_s=FORM_SECONDS)
                for name, count in topics.items():
                    await admin.create_topic(name, count, REPLICAS, configs)
        except (trio.TooSlowError, MqError) as error:
            raise self._violation(
                f"no topic could be made within {FORM_SECONDS:g} s: {error}"
            ) from error
        return [
            TopicPartition(name, number)
            for name, count in topics.items()
            for number in range(count)
        ]

    def _violation(self, text: str) -> _Ended:
        if self.probes.violation is None:
            self.result.violations.append(text)
        return _Ended(text)

    async def _validate_now_and_then(self) -> None:
        while True:
            await trio.sleep(VALIDATE_EVERY_SECONDS)
            self.probes.validate()

    async def _converge(
        self,
        cluster: Cluster,
        nemesis: Nemesis,
        workload: Workload,
        partitions: list[TopicPartition],
    ) -> None:
        healed_at = trio.current_time()
        missing: str | None = "nothing"
        with trio.move_on_after(CONVERGE_SECONDS):
            while missing is not None:
                await trio.sleep(LOOK_SECONDS)
                missing = self._missing(cluster, nemesis, workload, healed_at)
            missing = "an end of the producers"
            await workload.stop()
            while missing is not None:
                await trio.sleep(LOOK_SECONDS)
                missing = self._unread(workload, partitions) or self._missing(
                    cluster, nemesis, workload, -math.inf
                )
        if missing is not None:
            raise self._violation(
                f"liveness: {CONVERGE_SECONDS:g} s after all faults had ended there was still "
                f"missing: {missing}"
            )
        self.result.converged_after = trio.current_time() - healed_at

    def _missing(
        self, cluster: Cluster, nemesis: Nemesis, workload: Workload, healed_at: float
    ) -> str | None:
        if nemesis.controller() is None:
            return "a controller"
        if not nemesis.is_whole():
            image = nemesis.newest_image()
            fenced = [broker.node_id for broker in image.brokers.values() if broker.fenced]
            short = [
                f"{topic.name}-{number}: {partition}"
                for topic in image.topics.values()
                for number, partition in enumerate(topic.partitions)
                if set(partition.isr) != set(partition.replicas) or partition.leader < 0
            ]
            ended = [node_id for node_id, node in cluster.nodes.items() if not node.running]
            return f"replicas in sync; ended: {ended}, fenced: {fenced}, {'; '.join(short[:3])}"
        unserved = sorted(name for name, at in workload.acknowledged_at.items() if at <= healed_at)
        return (
            f"acknowledgements for {', '.join(unserved)}"
            if unserved
            else self.probes.undeleted() or self.probes.unreleased()
        )

    def _unread(self, workload: Workload, partitions: Iterable[TopicPartition]) -> str | None:
        for (consumer, place), offset in workload.positions.items():
            if place in partitions and self.probes.is_committed(place, offset):
                return f"records from {offset} on of {place} for {consumer}"
        return None

    def _start_coordinated(
        self,
        cluster: Cluster,
        nursery: trio.Nursery,
        partitions: list[TopicPartition],
        written: list[TopicPartition],
    ) -> None:
        choose = self.source("coordinated")
        new_client, end_of = partial(_client, cluster), self.probes.committed_end
        members: list[dict[GroupConsumer, None]] = []
        if self.load != "groups":
            copied = [partition for partition in partitions if partition.topic == COPIED]
            self.transactional = Transactional(
                ledger=self.ledger, new_client=new_client, source=self.source, end_of=end_of
            )
            if self.load == "prepare":
                self.transactional.start(nursery, written, [], writers=1, copiers=0)
                self.two_phase = TwoPhase(
                    ledger=self.ledger, new_client=new_client, source=self.source
                )
                self.two_phase.start(nursery, written, workers=choose.choice([1, 2, 3]))
            else:
                self.transactional.start(
                    nursery,
                    written,
                    copied,
                    writers=choose.choice([0, 1, 2]),
                    copiers=choose.choice([1, 2, 3]),
                )
            members.append(self.transactional.members)
        if self.load in ("groups", "all"):
            self.groups = Groups(
                ledger=self.group_ledger,
                new_client=new_client,
                source=self.source,
                end_of=end_of,
                request_seconds=REQUEST_SECONDS,
            )
            self.groups.start(nursery, partitions, groups=choose.choice([1, 2]))
            members.append(self.groups.members)
        self.probes.groups = GroupProbe(
            lambda: owned(member for some in members for member in some)
        )

    async def _end_coordinated(self, client: ClusterClient) -> None:
        """Everything is read and copied, every transaction has its end, and readers of
        committed records are not held up.

        A copy may take long where each batch has one record and each sync is slow. So the deadline
        moves while copies advance, but never beyond `DRAIN_SECONDS_MAX`.
        """
        missing: str | None = None
        ends_at = trio.current_time() + DRAIN_SECONDS_MAX
        with trio.move_on_after(CONVERGE_SECONDS) as scope:

            def wait_longer() -> None:
                scope.deadline = min(trio.current_time() + CONVERGE_SECONDS, ends_at)

            if self.groups is not None:
                await self.groups.drain(client)
            if self.transactional is not None:
                await self.transactional.drain(client, wait_longer)
                missing = "an end of the transactions' clients"
                await self.transactional.stop()
            if self.two_phase is not None:
                missing = "an end of prepared transactions"
                await self.two_phase.stop()
            while (missing := self.probes.unstable()) is not None:  # noqa: ASYNC110
                await trio.sleep(LOOK_SECONDS)
        if scope.cancelled_caught:
            missing = (
                (self.groups and self.groups.missing())
                or (self.transactional and self.transactional.missing())
                or missing
            )
            raise self._violation(
                f"liveness: after {CONVERGE_SECONDS:g} s without progress there was still "
                f"missing: {missing}"
            )

    async def _judge_transactions(
        self,
        client: ClusterClient,
        transactional: Transactional,
        final: dict[TopicPartition, list[tuple[int, bytes]]],
    ) -> None:
        with trio.fail_after(CONVERGE_SECONDS):
            committed = await transactional.read_everything(client, committed=True)
            everything = await transactional.read_everything(client, committed=False)
        missing = transactional.unread(committed)
        with trio.move_on_after(CONVERGE_SECONDS):
            while missing is not None:
                await trio.sleep(LOOK_SECONDS)
                missing = transactional.unread(committed)
        if missing is not None:
            raise self._violation(
                f"liveness: {CONVERGE_SECONDS:g} s after all transactions had ended there was "
                f"still missing: {missing}"
            )
        source = {partition: final[partition] for partition in transactional.copied}
        self.result.violations += [
            str(anomaly) for anomaly in self.ledger.check(committed, everything, source)
        ]

    def _check_metadata(self, cluster: Cluster, image: Any) -> None:
        """Topics that were acknowledged are there, deleted ones are gone, and so are their
        records, from every node.
        """
        violations, administration = self.result.violations, self.administration
        for name, count in sorted(administration.created.items()):
            topic = image.topics.get(name)
            if topic is None or len(topic.partitions) < count:
                violations.append(
                    f"I10: topic {name} was acknowledged with {count} partitions; now {topic}"
                )
        for name in sorted(administration.deleted & set(image.topics)):
            violations.append(f"I10: the deletion of {name} was acknowledged, and it is there")
        for node_id in sorted(cluster.nodes):
            daemon = cluster.daemon(node_id)
            assert daemon is not None
            for place, log in sorted(daemon.logs.logs.items()):
                topic = image.topics.get(place.topic)
                if (
                    topic is None
                    or topic.topic_id != log.topic_id
                    or node_id not in topic.partitions[place.partition].replicas
                ):
                    violations.append(
                        f"I18: node {node_id} keeps the log of {place}, which the metadata "
                        "does not give it"
                    )

    def _count(self) -> None:
        counts = self.result.counts
        counts.update(self.coverage.counts())
        if counts["handler_bugs"]:
            self.result.violations.append(
                f"unexpected exceptions in handlers cost {counts['handler_bugs']} connections"
            )
        counts["acknowledged"] = self.history.acknowledged
        counts["read"] = self.history.reads
        if hasattr(self, "probes"):
            for name in (
                "elections",
                "leader_changes",
                "batches",
                "truncations",
                "truncated_below_high_watermark",
                "isr_changes",
            ):
                counts[name] = getattr(self.probes.counts, name)
        if self.hostile is not None:
            counts.update(self.hostile.counts)
        for part in ("nemesis", "administration", "plots"):
            if hasattr(self, part):
                counts.update(getattr(self, part).counts)
        if hasattr(self, "workload"):
            counts["lost_producer_state"] = self.workload.statistics.lost_producer_state
            counts["reconnects"] = self.workload.statistics.reconnects
        if self.transactional is not None:
            counts.update(self.transactional.counts)
        if self.two_phase is not None:
            counts.update(self.two_phase.counts)
        counts["committed_transactions"] = self.ledger.commits
        counts["aborted_transactions"] = sum(
            one.outcome is Outcome.FAIL for one in self.ledger.transactions
        )
        counts["read_committed"] = self.ledger.reads
        counts["offset_commits"] = self.group_ledger.commits
        counts["assignments"] = self.group_ledger.assignments
        counts["refused_ghosts"] = self.group_ledger.refused_ghosts
