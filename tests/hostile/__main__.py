"""`python -m tests.hostile [--kafka] [--security sasl_ssl] [--attack NAME ...] [--known N]
[--seconds S]`: the good client's longest wait under each attack, one line per attack.

With --security sasl_ssl, all clients log in to a node with an authorizer. Each attack comes from a
user who may do everything, and from one without an ACL. Then come attacks of clients that do not
log in.

With --kafka, also Apache Kafka 4.3.1, and the ratio of both (below 1: mqd is better). Both brokers
run all the time.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from tests.hostile.attacks import ATTACKS, EVERY_ATTACK
from tests.hostile.secured import ATTACKER, STRANGER
from tests.hostile.trial import Attackers, Ports, Waits, good_client, kafka, mqd, waits_under

CONNECTIONS = (1, 5, 50)
WIDTH = 60
NOBODY = "nobody"
"""Attacks before the login have no user."""
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
        "--security",
        choices=["plaintext", "sasl_ssl"],
        default="plaintext",
        help="security.protocol of the clients [default: %(default)s]",
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
        choices=list(EVERY_ATTACK),
        metavar="NAME",
        help="one attack of these; again for more [default: all]: " + "; ".join(EVERY_ATTACK),
    )
    arguments = parser.parse_args()
    known, seconds = arguments.known, arguments.seconds
    has_logins = arguments.security == "sasl_ssl"
    attacks = list(attacks_of(arguments.attack or EVERY_ATTACK, has_logins=has_logins))
    if not attacks:
        parser.error("attacks on logins need --security sasl_ssl")
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
            ports[broker] = stack.enter_context(started(directory, known, has_logins=has_logins))
        head = " ".join(f"{broker:>9}" for broker in brokers) + "     ratio" * arguments.kafka
        print(
            f"{'attack':{WIDTH}} {'connections':>11} {head}",
            flush=True,
        )
        report("no attack", 0, ports, lambda ports: good_client(ports, seconds))
        for attack, user in attacks:
            kind = EVERY_ATTACK[attack]
            attacked = {
                broker: one for broker, one in ports.items() if one.attacked_by(kind) is not None
            }
            for connections in CONNECTIONS:
                report(
                    f"{attack}, without ACLs" if user == STRANGER else attack,
                    connections,
                    attacked,
                    partial(waits_under, attackers, user, attack, connections, known, seconds),
                )


def attacks_of(names: Iterable[str], *, has_logins: bool) -> Iterator[tuple[str, str]]:
    """Attacks, each with the user who attacks."""
    for name in names:
        if name in ATTACKS:
            yield name, ATTACKER
        elif has_logins:
            yield name, NOBODY
        if has_logins and name in ATTACKS and not ATTACKS[name].on_peer_port:
            yield name, STRANGER


def report(
    attack: str, connections: int, ports: dict[str, Ports], measure: Callable[[Ports], Waits]
) -> None:
    """Measure each broker in turn, and print the line."""
    longest = {broker: measure(one).longest for broker, one in ports.items()}
    row = f"{attack:{WIDTH}} {connections:11} " + " ".join(
        f"{1000 * one:6.0f} ms" for one in longest.values()
    )
    print(
        row + (f" {longest['mqd'] / longest['Kafka']:9.2f}" if "Kafka" in longest else ""),
        flush=True,
    )


if __name__ == "__main__":
    main()
