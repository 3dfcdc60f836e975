"""`python -m tests.hostile [--kafka] [--known N] [--seconds S]`: the good client's longest wait under each attack, as a table.

With --kafka, Apache Kafka 4.3.1 beside it, and the ratio of both (below 1: mqd is better).
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.hostile.attacks import ATTACKS
from tests.hostile.trial import good_client, kafka, mqd, waits_under

CONNECTIONS = (1, 5, 50)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.hostile", description="Attack a broker, and measure how long a good client waits."
    )
    parser.add_argument("--kafka", action="store_true", help="attack Apache Kafka 4.3.1, too (needs Java 17)")
    parser.add_argument("--known", type=int, default=10_000, help="partitions of the topic that exists [default: %(default)s]")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each attack lasts [default: %(default)s]")
    arguments = parser.parse_args()
    brokers = {"mqd": mqd, "Kafka": kafka} if arguments.kafka else {"mqd": mqd}
    longest: dict[tuple[str, int], dict[str, float]] = {}
    for broker, started in brokers.items():
        with tempfile.TemporaryDirectory(prefix="hostile-") as directory, started(Path(directory), arguments.known) as port:
            longest.setdefault(("no attack", 0), {})[broker] = good_client(port, arguments.seconds).longest
            for attack in ATTACKS:
                for connections in CONNECTIONS:
                    waits = waits_under(port, attack, connections, arguments.known, arguments.seconds)
                    longest.setdefault((attack, connections), {})[broker] = waits.longest
    print(
        f"{'attack':36} {'connections':>11} " + " ".join(f"{broker:>9}" for broker in brokers) + ("     ratio" if arguments.kafka else "")
    )
    for (attack, connections), found in longest.items():
        row = f"{attack:36} {connections:11} " + " ".join(f"{1000 * found[broker]:6.0f} ms" for broker in brokers)
        print(row + (f" {found['mqd'] / found['Kafka']:9.2f}" if arguments.kafka else ""))


if __name__ == "__main__":
    main()
