"""How long is a partition unavailable when a node fails, and how long does recovery take?

    python -m bench.failover [--session-ms 3000] [--rounds 10] [--peer-kafka] [--only \
        leader|controller|both] [--security sasl_ssl] [--json FILE]

Three nodes, a topic of one partition with three replicas, min.insync.replicas 2. A confluent-kafka
producer with acks=all, otherwise with librdkafka's defaults, sends 500 records a second. The
*silence* is the longest time between two acknowledgements. Each scenario kills one node with kill
-9. `leader`: it leads the partition, but not the metadata quorum. `controller`: it leads the
quorum, but not the partition. `both`: it leads both. Then the node is started again. The *recovery*
is the time from this start until all three nodes report a full ISR.

Without --session-ms, each broker has its default session timeout (mqd 3 s, Apache Kafka 9 s). With
it, both have this timeout, and six heartbeats in it. With --peer-kafka, the rounds alternate
between mqd and three nodes of Apache Kafka.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import floors
from chaos import cluster_security
from chaos.ensemble import Ensemble, ensemble
from chaos.node import NodeFailed, end_on_sigterm
from chaos.workload import Producer, TrialFailed

SCENARIOS = ("leader", "controller", "both")
GOAL = 0.3
"""The maximum ratio to the peer's figure."""
RATE = 500.0
BEFORE_S = 1.5
AFTER_S = 1.0
"""How long acknowledgements must arrive before the killed node is started. A second silence would
count, too.
"""
SILENCE_MAX_S = 60.0
ATTEMPTS = 3


class Disturbed(NodeFailed):
    """The leader or the controller has moved before the kill."""


@dataclass
class Results:
    """The seconds of one cluster in each scenario."""

    silence: dict[str, list[float]] = field(default_factory=dict)
    recovery: dict[str, list[float]] = field(default_factory=dict)


def one_round(cluster: Ensemble, scenario: str, number: int) -> tuple[float, float]:
    """Returns (silence, recovery) in seconds. Raises NodeFailed and TrialFailed."""
    controller = find_controller(cluster)
    others = [node_id for node_id in cluster.nodes if node_id != controller]
    # the order of the other nodes alternates between rounds, so that no node is favoured
    others = others[number % 2 :] + others[: number % 2]
    victim = others[0] if scenario == "leader" else controller
    leader = others[0] if scenario != "both" else controller
    topic = f"failover-{scenario}-{number}"
    cluster.create_topic(
        topic,
        assignment={0: [leader, *(node_id for node_id in cluster.nodes if node_id != leader)]},
    )
    key = (topic, 0)
    settings = {**cluster.client_options, "compression.type": "none"}
    producer = Producer(number, cluster.bootstrap, [key], number, rate=RATE, options=settings)
    producer.start()
    try:
        producer.wait_for_acknowledgement()
        time.sleep(BEFORE_S)
        if find_controller(cluster) != controller or cluster.leader(topic) != leader:
            raise Disturbed(
                "the roles moved before anything was done: the machine is too busy to measure"
            )
        producer.silence.reset()
        killed = time.monotonic()
        cluster.nodes[victim].kill()
        wait_for_flow(producer, key, killed)
        silence = producer.silence.reset()
        launched = time.monotonic()
        cluster.nodes[victim].launch()
        whole = cluster.wait_until(
            lambda: cluster.is_whole({topic: 1}), "a full ISR after the restart"
        )
        cluster.nodes[victim].wait_ready()
        producer.finish()
    except BaseException:
        producer.abandon()
        raise
    return silence, whole - launched


def until_undisturbed(cluster: Ensemble, scenario: str, number: int) -> tuple[float, float]:
    """Repeat `one_round` until the leader and the controller do not move before the kill."""
    for attempt in range(ATTEMPTS - 1):
        with suppress(Disturbed):
            return one_round(cluster, scenario, number + 1000 * attempt)
    return one_round(cluster, scenario, number + 1000 * ATTEMPTS)


def find_controller(cluster: Ensemble) -> int:
    """Wait for a leader of the quorum; returns its id."""
    found: list[int] = []

    def has_controller() -> bool:
        controller = cluster.controller()
        found[:] = [] if controller is None else [controller]
        return bool(found)

    cluster.wait_until(has_controller, "a controller")
    return found[0]


def wait_for_flow(producer: Producer, key: tuple[str, int], killed: float) -> None:
    """Wait until at least `AFTER_S` after the kill, and until acknowledgements have arrived for
    `AFTER_S` without a pause of a third of that.
    """
    flowing_since = killed
    while True:
        now, last = time.monotonic(), producer.silence.last[key]
        if now - last > AFTER_S / 3:
            flowing_since = now
        if now - flowing_since > AFTER_S and now - killed > 2 * AFTER_S:
            return
        if producer.errors or now - killed > SILENCE_MAX_S:
            raise TrialFailed(f"no acknowledgement for {SILENCE_MAX_S:.0f} s {producer.errors[:1]}")
        time.sleep(0.01)


def measure(clusters: list[Ensemble], scenarios: list[str], rounds: int) -> dict[str, Results]:
    """Run all rounds. The clusters take turns: A B, then B A."""
    results = {cluster.kind: Results() for cluster in clusters}
    for number in range(rounds):
        for scenario in scenarios:
            for cluster in clusters if number % 2 == 0 else clusters[::-1]:
                silence, recovery = until_undisturbed(cluster, scenario, number)
                results[cluster.kind].silence.setdefault(scenario, []).append(silence)
                results[cluster.kind].recovery.setdefault(scenario, []).append(recovery)
                print(
                    f"  round {number + 1} {scenario} {cluster.kind}: silence {silence:.2f} "
                    f"s, recovery {recovery:.2f} s",
                    file=sys.stderr,
                )
    return results


def rows(results: dict[str, Results], scenarios: list[str]) -> list[dict[str, Any]]:
    """One row for each figure: the median and the worst of each cluster, and the ratio of mqd to
    the peer.
    """
    made = []
    for scenario in scenarios:
        for what in ("silence", "recovery"):
            values = [getattr(one, what)[scenario] for one in results.values()]
            for name, reduce in (("p50", statistics.median), ("worst", max)):
                figures = [float(reduce(one)) for one in values]
                made.append(
                    {
                        "benchmark": f"{scenario} dies",
                        "figure": f"{what} {name}",
                        "values": figures,
                        "ratio": figures[0] / figures[1] if len(figures) > 1 else None,
                    }
                )
    return made


def render(row: dict[str, Any]) -> str:
    """One line of the table."""
    text = f"{row['benchmark']:18}{row['figure']:18}{'s':>3}" + "".join(
        f"{value:>10.2f}" for value in row["values"]
    )
    if row["ratio"] is not None:
        text += f"{row['ratio']:>8.2f}  {'ok' if row['ratio'] <= GOAL else f'<= {GOAL}!'}"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.failover",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--session-ms",
        type=int,
        default=None,
        help="broker session timeout of both (each its own default)",
    )
    parser.add_argument("--rounds", type=int, default=10, help="of each scenario (10)")
    parser.add_argument(
        "--peer-kafka",
        action="store_true",
        help="measure three nodes of Apache Kafka in turn",
    )
    parser.add_argument(
        "--kind", choices=("mqd", "kafka"), default="mqd", help="which runs first (mqd)"
    )
    parser.add_argument(
        "--only", action="append", choices=SCENARIOS, help="only this; may be repeated"
    )
    parser.add_argument("--json", metavar="FILE", help="write everything there, too")
    cluster_security.add_arguments(parser)
    options = parser.parse_args()
    scenarios = options.only or list(SCENARIOS)
    end_on_sigterm()
    directory = Path(tempfile.mkdtemp(prefix="failover-"))
    clusters: list[Ensemble] = []
    try:
        for kind in [
            options.kind,
            *(["kafka"] if options.peer_kafka and options.kind != "kafka" else []),
        ]:
            security = cluster_security.from_arguments(options, directory / f"{kind}-security")
            clusters.append(
                ensemble(kind, directory / kind, session_ms=options.session_ms, security=security)
            )
            clusters[-1].start()
        machine = floors.machine(directory)
        print("\n".join(f"{key}: {value}" for key, value in machine.items()))
        print(
            "clusters: "
            + ", ".join(
                f"three nodes of {one.kind}, session {one.session_ms} ms" for one in clusters
            )
        )
        print(
            f"rounds: {options.rounds}, load: {RATE:.0f} records/s, acks=all, idempotent, "
            "librdkafka's defaults\n",
            flush=True,
        )
        table = rows(measure(clusters, scenarios, options.rounds), scenarios)
    except (NodeFailed, TrialFailed) as error:
        print(f"failover: {error}", file=sys.stderr)
        return 1
    finally:
        for cluster in clusters:
            cluster.kill()
        shutil.rmtree(directory, ignore_errors=True)
    print(
        f"{'benchmark':18}{'figure':18}{'':3}"
        + "".join(f"{one.kind:>10}" for one in clusters)
        + ("   ratio  goal" if len(clusters) > 1 else "")
    )
    for row in table:
        print(render(row))
    if options.json:
        Path(options.json).write_text(
            json.dumps({"machine": machine, "rounds": options.rounds, "rows": table}, indent=1)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
