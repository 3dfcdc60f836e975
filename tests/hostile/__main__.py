"""`python -m tests.hostile [--kafka] [--attack NAME ...] [--known N] [--seconds S]`: the good
client's longest wait under each attack, one line per attack.

With --kafka, also Apache Kafka 4.3.1, and the ratio of both (below 1: mqd is better). Both brokers
run all the time.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from tests.hostile.attacks import ATTACKS
from tests.hostile.trial import Attackers, Ports, Waits, good_client, kafka, mqd, waits_under

CONNECTIONS = (1, 5, 50)
START_SECONDS = 15
"""The start of a broker, including the attacked topic; roughly."""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.hostile",
        description="Attack a broker, and measure how long a good client waits.",
    )
    parser.add_argument(
        "--kafka", action="store_true", help="attack Apache Kafka 4.3.1, too (needs Java 17)"
    )
    parser.add_argument(
        "--known",
        type=int,
        default=10_000,
        help="partitions of the topic that exists [default: %(default)s]",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=10.0,
        help="how long each attack lasts [default: %(default)s]",
    )
    parser.add_argument(
        "--attack",
        action="append",
        choices=list(ATTACKS),
        metavar="NAME",
        help="one attack of these; again for more [default: all]: " + "; ".join(ATTACKS),
    )
    arguments = parser.parse_args()
    known, seconds = arguments.known, arguments.seconds
    attacks = arguments.attack or list(ATTACKS)
    brokers = {"mqd": mqd, "Kafka": kafka} if arguments.kafka else {"mqd": mqd}
    rounds = 1 + len(attacks) * len(CONNECTIONS)
    takes = len(brokers) * (START_SECONDS + rounds * (seconds + 1))
    print(
        f"The longest wait of a good client, in {rounds} rounds. This takes about "
        f"{takes / 60:.0f} minutes.",
        flush=True,
    )
    with ExitStack() as stack:
        attackers = stack.enter_context(closing(Attackers()))
        ports = {}
        for broker, started in brokers.items():
            print(f"Starting {broker}, with a topic of {known} partitions.", flush=True)
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hostile-")))
            ports[broker] = stack.enter_context(started(directory, known))
        head = " ".join(f"{broker:>9}" for broker in brokers)
        print(
            f"{'attack':36} {'connections':>11} {head}{'     ratio' if arguments.kafka else ''}",
            flush=True,
        )
        report("no attack", 0, ports, lambda ports: good_client(ports.client, seconds))
        for attack in attacks:
            kind = ATTACKS[attack]
            attacked = {
                broker: one for broker, one in ports.items() if one.attacked_by(kind) is not None
            }
            for connections in CONNECTIONS:
                report(
                    attack,
                    connections,
                    attacked,
                    partial(waits_under, attackers, attack, connections, known, seconds),
                )


def report(
    attack: str, connections: int, ports: dict[str, Ports], measure: Callable[[Ports], Waits]
) -> None:
    """Measure each broker in turn, and print the line."""
    longest = {broker: measure(one).longest for broker, one in ports.items()}
    row = f"{attack:36} {connections:11} " + " ".join(
        f"{1000 * one:6.0f} ms" for one in longest.values()
    )
    print(
        row + (f" {longest['mqd'] / longest['Kafka']:9.2f}" if "Kafka" in longest else ""),
        flush=True,
    )


if __name__ == "__main__":
    main()
