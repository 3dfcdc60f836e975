"""What do ten thousand partitions cost, and how long does a cluster with them take to handle the
stop, start and failure of a node?

    python -m bench.metadata [--partitions 10000] [--topics 100] [--peer-kafka] \
        [--security sasl_ssl] [--json FILE]

Three nodes, three replicas of each partition, min.insync.replicas 2. The topics are created in
requests of ten; the time counts until each node reports that every partition has a leader and a
full ISR. Then a node is stopped and started; the time counts until every ISR is full again. Then
another node, which leads the metadata quorum, is killed; the time counts until every partition has
another leader, and the node is started again. Meanwhile a confluent-kafka producer with acks=all
sends 200 records a second to a topic of one partition. The *stall* is its longest time between two
acknowledgements. At the end, one request deletes all topics.

With --peer-kafka, three nodes of Apache Kafka run the same benchmarks afterwards. They need 512 MB
each, and more time to start.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import floors
from chaos import cluster_security
from chaos.ensemble import Ensemble, View, ensemble
from chaos.node import NodeFailed, end_on_sigterm
from chaos.workload import Producer, TrialFailed

RATE = 200.0
PATIENCE_S = 300.0
TOPICS_AT_ONCE = 10
LOOK_PAUSE_S = 0.2
"""The pause between two polls of all partitions: a poll takes some of the node's time that is
measured.
"""
BEFORE_S = 2.0
ALWAYS = "one-partition"


class Trial:
    """One cluster and its figures."""

    def __init__(self, cluster: Ensemble, topics: int, partitions: int) -> None:
        self.cluster = cluster
        self.topics = [f"many-{number}" for number in range(topics)]
        self.count = partitions
        self.per_topic = partitions // topics
        self.figures: dict[str, float] = {}

    def view(self, node_id: int) -> View:
        return self.cluster.view(node_id, self.topics)

    def is_whole(self, node_id: int) -> bool:
        """Whether this node reports that every partition has a leader and a full ISR."""
        view = self.view(node_id)
        return len(view) == self.count and all(
            row.leader >= 0 and len(row.isr) == len(row.replicas) for row in view.values()
        )

    def wait(self, what: str, *nodes: int) -> None:
        """Wait until these nodes report that every partition is whole."""
        for node_id in nodes:
            deadline = time.monotonic() + PATIENCE_S
            while not self.is_whole(node_id):
                if time.monotonic() > deadline:
                    raise NodeFailed(
                        f"{self.cluster.kind}: waited {PATIENCE_S:.0f} s for {what}, as node "
                        f"{node_id} sees it"
                    )
                time.sleep(LOOK_PAUSE_S)

    def run(self) -> dict[str, float]:
        cluster = self.cluster
        cluster.create_topic(ALWAYS, assignment={0: [1, 2, 3]})
        self.note_memory("before, largest node")
        settings = {**cluster.client_options, "compression.type": "none"}
        producer = Producer(1, cluster.bootstrap, [(ALWAYS, 0)], 1, rate=RATE, options=settings)
        producer.start()
        try:
            producer.wait_for_acknowledgement()
            self.create()
            self.stall(producer, "stall: create")
            self.note_memory("with them, largest node")
            self.restart(3)
            self.stall(producer, "stall: restart")
            self.kill(self.controller())
            self.stall(producer, "stall: kill")
            self.delete()
            self.stall(producer, "stall: delete")
            producer.stop_sending()
            producer.finish()
        finally:
            producer.abandon()
        return self.figures

    def create(self) -> None:
        started_at = time.monotonic()
        for start in range(0, len(self.topics), TOPICS_AT_ONCE):
            rows = [
                {
                    "name": name,
                    "num_partitions": self.per_topic,
                    "replication_factor": 3,
                    "assignments": [],
                    "configs": [],
                }
                for name in self.topics[start : start + TOPICS_AT_ONCE]
            ]
            response = self.cluster.request(
                1, "create_topics", 5, {"topics": rows, "timeout_ms": 60_000}, timeout_s=90
            )
            failed = [
                f"{row.name}: error {row.error_code} {row.error_message or ''}"
                for row in response.topics
                if row.error_code
            ]
            if failed:
                raise NodeFailed(f"{self.cluster.kind} does not create {failed[0]}")
        self.figures["created, s"] = time.monotonic() - started_at
        self.wait("every partition to be led and in sync", *self.cluster.nodes)
        self.figures["led and in sync, s"] = time.monotonic() - started_at

    def restart(self, node_id: int) -> None:
        node = self.cluster.nodes[node_id]
        started_at = time.monotonic()
        node.terminate()
        node.wait_stopped(PATIENCE_S)
        self.figures["clean shutdown, s"] = time.monotonic() - started_at
        launched = time.monotonic()
        node.launch()
        node.wait_ready()
        self.figures["start, s"] = time.monotonic() - launched
        self.wait("full ISRs after a restart", *self.cluster.nodes)
        self.figures["start to full ISR, s"] = time.monotonic() - launched

    def kill(self, victim: int) -> None:
        node = self.cluster.nodes[victim]
        other = next(node_id for node_id in self.cluster.nodes if node_id != victim)
        killed = time.monotonic()
        node.kill()
        while any(row.leader in (-1, victim) for row in self.view(other).values()):
            if time.monotonic() > killed + PATIENCE_S:
                raise NodeFailed(
                    f"{self.cluster.kind}: partitions are without a leader {PATIENCE_S:.0f} s "
                    "after a kill"
                )
            time.sleep(LOOK_PAUSE_S)
        self.figures["kill to all led, s"] = time.monotonic() - killed
        launched = time.monotonic()
        node.launch()
        node.wait_ready()
        self.wait("full ISRs after a kill", *self.cluster.nodes)
        self.figures["then start to full ISR, s"] = time.monotonic() - launched

    def delete(self) -> None:
        started_at = time.monotonic()
        response = self.cluster.request(
            1, "delete_topics", 5, {"topic_names": self.topics, "timeout_ms": 60_000}, timeout_s=90
        )
        failed = [
            f"{row.name}: error {row.error_code}" for row in response.responses if row.error_code
        ]
        if failed:
            raise NodeFailed(f"{self.cluster.kind} does not delete {failed[0]}")
        for node_id in self.cluster.nodes:
            while self.view(node_id):
                time.sleep(LOOK_PAUSE_S)
        self.figures["deleted, s"] = time.monotonic() - started_at

    def controller(self) -> int:
        controller = self.cluster.controller()
        if controller is None:
            raise NodeFailed(f"{self.cluster.kind}: the metadata quorum has no leader")
        return controller

    def stall(self, producer: Producer, name: str) -> None:
        """The longest time between two acknowledgements since the last benchmark."""
        time.sleep(BEFORE_S)
        self.figures[f"{name}, s"] = producer.silence.reset()

    def note_memory(self, name: str) -> None:
        self.figures[f"{name}, MB"] = (
            max(node.resident_bytes() for node in self.cluster.nodes.values()) / 1e6
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.metadata",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--partitions", type=int, default=10_000, help="in all (10000)")
    parser.add_argument(
        "--topics", type=int, default=100, help="over which they are spread evenly (100)"
    )
    parser.add_argument(
        "--peer-kafka",
        action="store_true",
        help="run the same on three nodes of Apache Kafka afterwards",
    )
    parser.add_argument(
        "--kind", choices=("mqd", "kafka"), default="mqd", help="which runs first (mqd)"
    )
    parser.add_argument("--json", metavar="FILE", help="write everything there, too")
    cluster_security.add_arguments(parser)
    options = parser.parse_args()
    if options.partitions % options.topics:
        parser.error("--partitions must be a multiple of --topics")
    end_on_sigterm()
    directory = Path(tempfile.mkdtemp(prefix="metadata-"))
    results: dict[str, dict[str, float]] = {}
    cluster: Ensemble | None = None
    machine: dict[str, Any] = {}
    try:
        machine = floors.machine(directory)
        print("\n".join(f"{key}: {value}" for key, value in machine.items()))
        print(
            f"{options.partitions} partitions in {options.topics} topics, three replicas, "
            "three nodes\n",
            flush=True,
        )
        for kind in dict.fromkeys([options.kind, *(["kafka"] if options.peer_kafka else [])]):
            security = cluster_security.from_arguments(options, directory / f"{kind}-security")
            cluster = ensemble(kind, directory / kind, security=security)
            cluster.start()
            trial = Trial(cluster, options.topics, options.partitions)
            results[kind] = trial.figures
            trial.run()
            cluster.stop()
    except (NodeFailed, TrialFailed) as error:
        print(f"metadata: {error}", file=sys.stderr)
        return 1
    finally:
        if cluster is not None:
            cluster.kill()
        shutil.rmtree(directory, ignore_errors=True)
        names = dict.fromkeys(name for figures in results.values() for name in figures)
        print(f"{'figure':32}" + "".join(f"{kind:>10}" for kind in results))
        for name in names:
            print(
                f"{name:32}"
                + "".join(
                    f"{figures[name]:10.2f}" if name in figures else f"{'-':>10}"
                    for figures in results.values()
                )
            )
    if options.json:
        Path(options.json).write_text(
            json.dumps(
                {"machine": machine, "partitions": options.partitions, "figures": results}, indent=1
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
