"""One run of one seed: a cluster under faults and load, then without faults, then checked.

A run has three phases.

- Safety: faults, load and administration, with the probes after every event.
- Liveness: all faults end. Within `CONVERGE_SECONDS` of virtual time, there must be a controller,
  and every partition must have a leader and all replicas in sync. Every producer must get an
  acknowledgement, and every consumer must read everything.
- Check: the checkers compare the responses to clients with the final logs, the probes check every
  byte, and the metadata must have every acknowledged change.

`run_seed` returns the violations and does not raise them, so that the next seed can run.
"""

from __future__ import annotations

import random
import time
from functools import partial
from pathlib import Path

import trio

from mqd.client.cluster import ClusterClient
from mqd.client.nurseries import on_crash
from mqd.testing.checker import History
from mqd.testing.clients.delayed import DelayedRecords, DelayFeatures
from mqd.testing.clients.hostile import ATTACKERS_TOPIC, Hostile
from mqd.testing.clients.queues import MEMORY_TOPIC, PLACES, Queues
from mqd.testing.clients.workload import Workload
from mqd.testing.clients.workload_state import WorkloadState
from mqd.testing.cluster import Cluster
from mqd.testing.convergence import CONVERGE_SECONDS, Convergence, LivenessError
from mqd.testing.coordinated_load import CoordinatedLoad
from mqd.testing.coverage import Coverage
from mqd.testing.faults.administration import SHORTENED, THROWAWAY, Administration
from mqd.testing.faults.faulted_cluster import FaultedCluster
from mqd.testing.faults.nemesis import Nemesis
from mqd.testing.faults.plan import FaultPlan, Mode
from mqd.testing.faults.plots import Plots, draw_plot
from mqd.testing.formation import COPIED, FORM_SECONDS, Formation, FormationError
from mqd.testing.metadata_check import check_metadata
from mqd.testing.node_options import DELIVERY_LIMIT, draw_options
from mqd.testing.probes.memory import MemoryProbe
from mqd.testing.probes.probes import Probes
from mqd.testing.settings import LOADS, Result, Settings
from mqd.testing.share_features import ShareFeatures
from mqd.testing.thresholds import draw_price
from mqd.testing.wall_times import WallTimes
from mqd.testing.world import current_world, run
from mqd.types import TopicPartition

VALIDATE_EVERY_SECONDS = 2.0
REQUEST_SECONDS = 2.0
_LIKELIHOODS = (0.38, 0.06, 0.11, 0.1, 0.08, 0.08, 0.07, 0.06, 0.06)
_ALSO_HOSTILE = 0.15
"""The probability that a seed of another load also has a hostile client."""
BUSY_SECONDS_MAX = 0.1
"""The maximum time for which a request or a turn may block the event loop of a node."""


async def _client(cluster: Cluster, name: str) -> ClusterClient:
    return await cluster.client(name, request_timeout_s=REQUEST_SECONDS, wait_s=FORM_SECONDS)


def run_seed(settings: Settings, trace: Path | None = None) -> Result:
    """Run one seed, and return its result. With `trace`, write every line of the trace to this
    file.
    """
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
        result.violations.append(_describe(error))
    finally:
        on_crash.reset(watching)
        result.violations += [f"a client crashed: {_describe(crash)}" for crash in crashes]
        result.real_seconds = time.perf_counter() - began
        if trace is not None and lines is not None:
            trace.write_text("".join(f"{line}\n" for line in lines))
    return result


def _describe(error: BaseException) -> str:
    """An exception in one line, with the exceptions of its group and its last frames in mqd."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(map(_describe, error.exceptions))
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
        self.plan = FaultPlan.draw(self.chance)
        self.plot = settings.plot or draw_plot(self.plan.mode, self.source("plot"))
        self.load = settings.load or self.source("load").choices(LOADS, _LIKELIHOODS)[0]
        self.has_coordinated_load = self.load not in ("plain", "hostile")
        self.is_hostile = self.load == "hostile" or self.source("hostile").random() < _ALSO_HOSTILE
        self.history = History()
        self.coordinated: CoordinatedLoad | None = None
        self.hostile: Hostile | None = None
        self.own_clients: DelayedRecords | Queues | None = None
        """The clients of the loads `delay` and `queues`."""
        self.scope = trio.CancelScope()
        self.coverage = Coverage()
        self.features = ShareFeatures.draw(self.source("share features"))

    def source(self, purpose: str) -> random.Random:
        return random.Random(f"{self.settings.seed}/{purpose}")

    async def main(self) -> None:
        world = current_world()
        if self.lines is not None:
            world.trace.write_to = self.lines
        try:
            options = self.options = draw_options(
                self.source("thresholds"), self.load, self.plan.mode, is_hostile=self.is_hostile
            )
            async with Cluster(
                nodes=self.settings.nodes,
                observers=self.settings.observers,
                options=options,
                start=False,
                security=self.settings.security,
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
                        coordinated=self.has_coordinated_load,
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

    def _restarted(self, node_id: int) -> None:
        self.history.restarted(node_id)
        if self.coordinated is not None:
            self.coordinated.ledger.restarted(node_id)

    def _may_lose(self, topic: str) -> bool:
        """Topics of administration, and those of hostile clients in the load "plain", have no
        `flush.before.ack`. So a power cut of all their replicas may lose records. A topic in memory
        has a ledger of its own (memory_ledger.py).
        """
        return topic in (SHORTENED, MEMORY_TOPIC) or (
            (topic.startswith(THROWAWAY) or topic == ATTACKERS_TOPIC)
            and self.plan.mode is Mode.POWER_ALL
        )

    async def _phases(self, cluster: Cluster) -> None:
        new_client = partial(_client, cluster)
        self.walls = WallTimes(cluster.nodes)
        formation = Formation(new_client, self.plan.mode)
        try:
            partitions = await formation.create_topics(self.chance)
            checked = partitions
            if self.load == "share":
                checked = partitions + await formation.create_share_groups(
                    self.source("topics"), self.features
                )
            elif self.has_coordinated_load:
                checked = partitions + await formation.create_coordinated(self.source("topics"))
            if self.load == "delay":
                delay_features = DelayFeatures.draw(self.source("delay features"))
                checked = checked + await formation.create_delayed(
                    self.source("delay topics"), delay_features
                )
                self.own_clients = DelayedRecords(
                    new_client, self.source, cluster.clock.wall_ms, self.walls, delay_features
                )
            if self.load == "queues":
                checked = checked + await formation.create_queues(self.source("queue topics"))
                memory = self.probes.memory = MemoryProbe(PLACES)
                self.own_clients = Queues(new_client, self.source, memory.committed_end)
        except FormationError as error:
            self.result.violations.append(str(error))
            return
        state = WorkloadState(
            history=self.history,
            new_client=new_client,
            source=self.source,
            is_committed=self.probes.is_committed,
            clock=cluster.clock,
            has_keys=self.load == "share",
            has_ttl=self.load == "share" and self.features.ttl_ms is not None,
        )
        workload = self.workload = Workload(state)
        client = await new_client("admin")
        async with trio.open_nursery() as nursery:
            chance = self.source("faults")
            faulted = self.faulted = FaultedCluster(cluster, self.probes, chance, nursery, checked)
            nemesis = Nemesis(faulted, self.probes, self.plan, chance)
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
            if self.has_coordinated_load:
                self.coordinated = CoordinatedLoad(
                    self.load,
                    self.probes,
                    new_client,
                    self.source,
                    REQUEST_SECONDS,
                    int(self.options.get(DELIVERY_LIMIT, 0)),
                    self.walls,
                    self.features,
                )
                self.coordinated.start(nursery, partitions, checked)
            if self.own_clients is not None:
                self.own_clients.start(nursery)
            if self.plot is not None:
                self.plots = Plots(self.plot, faulted, administration, state, self.source("play"))
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
            try:
                await self._check(client, partitions)
            except LivenessError as error:
                self.result.violations.append(f"liveness: {error}")
            nursery.cancel_scope.cancel()

    async def _check(self, client: ClusterClient, partitions: list[TopicPartition]) -> None:
        """The phases after all faults: liveness and check."""
        convergence = Convergence(self.faulted, self.probes, self.workload)
        self.result.converged_after = await convergence.wait(partitions)
        if self.load in ("share", "delay"):
            self.walls.jump()
        if self.coordinated is not None:
            await self.coordinated.drain(client)
        if self.own_clients is not None:
            with trio.move_on_after(CONVERGE_SECONDS) as scope:
                await self.own_clients.drain(client)
            if scope.cancelled_caught:
                raise LivenessError(f"there was still missing: {self.own_clients.missing()}")
        self.probes.validate()
        with trio.fail_after(CONVERGE_SECONDS):
            final = await self.workload.read_everything(client, partitions)
        anomalies = self.history.check(final)
        if self.coordinated is not None:
            anomalies += await self.coordinated.check(client, final)
        if self.own_clients is not None:
            anomalies += await self.own_clients.check(client)
        self.result.violations += map(str, anomalies)
        self.result.violations += check_metadata(self.faulted, self.administration)

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

    async def _validate_now_and_then(self) -> None:
        while True:
            await trio.sleep(VALIDATE_EVERY_SECONDS)
            self.probes.validate()

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
        for part in ("faulted", "administration", "plots"):
            if hasattr(self, part):
                counts.update(getattr(self, part).counts)
        if hasattr(self, "workload"):
            counts["lost_producer_state"] = self.workload.state.statistics.lost_producer_state
            counts["reconnects"] = self.workload.state.statistics.reconnects
        if self.coordinated is not None:
            counts.update(self.coordinated.counts())
        if self.own_clients is not None:
            counts.update(self.own_clients.counts)
