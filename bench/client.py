"""How fast are mqd's client and other Python clients of Kafka, with the same broker in one run?

    python -m bench.client [--records 1000000] [--sizes 100,1024] [--rounds 3] [--keys 8]
                           [--clients mqd,aiokafka] [--directions produce,consume] [--spread 50]

The clients mqd (records), mqd-arrow (Arrow batches), aiokafka, kafka-python and confluent-kafka
produce and consume. Each runs in its own process, with one mqd node that this program starts.
Clients run in turn, and each round begins with another client. The table has medians. `wall` is the
time that a user waits; it depends on the load of the machine. `cpu` is the CPU time of the client's
process. client_roles.py lists the settings that all clients share.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench import brokers, floors
from bench.brokers import Broker
from bench.generators import BenchError, run

CLIENTS = ("mqd", "mqd-arrow", "aiokafka", "confluent-kafka", "kafka-python")
DIRECTIONS = ("produce", "consume")
YARDSTICK = "aiokafka"
GOALS = {"mqd": 1.0, "mqd-arrow": 3.0}
"""The required ratio to the reference client."""
FILLER = "confluent-kafka"
WARM_UP_RECORDS = 100_000


@dataclass(frozen=True)
class Load:
    """The load of every client."""

    records: int
    value_bytes: int
    key_bytes: int
    spread: int


@dataclass(frozen=True)
class Figure:
    """The medians of one client: records per second."""

    direction: str
    value_bytes: int
    client: str
    wall: float
    cpu: float
    times_wall: float | None
    times_cpu: float | None
    """Relative to the reference client."""


def main() -> int:
    options = parse()
    directory = Path(tempfile.mkdtemp(prefix="mqd-bench-", dir=options.data))
    broker = brokers.mqd(directory / "mqd")
    figures: list[Figure] = []
    try:
        if options.broker is None:
            broker.start()
        else:
            broker = Broker("broker", options.broker)
        machine = floors.machine(directory)
        print(*(f"{key}: {value}" for key, value in machine.items()), sep="\n")
        print(
            f"{options.records:,} records, {options.rounds} rounds, medians; "
            f"keys of {options.keys} bytes"
        )
        print(
            f"\n{'':9}{'value':>7}  {'client':17}{'records/s':>12}{'a CPU s':>12}"
            f"{'times ' + YARDSTICK:>17}{'by CPU':>8}  goal"
        )
        for size in options.sizes:
            load = Load(options.records, size, options.keys, min(options.spread, size))
            for figure in measure(broker, load, options):
                figures.append(figure)
                print(render(figure), flush=True)
    except BenchError as error:
        print(f"client: {error}", file=sys.stderr)
        return 1
    finally:
        broker.stop()
        shutil.rmtree(directory, ignore_errors=True)
    if options.json:
        rows = [vars(figure) for figure in figures]
        Path(options.json).write_text(json.dumps({"machine": machine, "figures": rows}, indent=1))
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--records",
        type=int,
        default=1_000_000,
        metavar="N",
        help="records a run [default: 1000000]",
    )
    parser.add_argument(
        "--sizes",
        type=numbers,
        default=[100, 1024],
        metavar="BYTES",
        help="value sizes [default: 100,1024]",
    )
    parser.add_argument(
        "--keys", type=int, default=0, metavar="BYTES", help="key size; 0 for none [default: 0]"
    )
    parser.add_argument(
        "--spread",
        type=int,
        default=0,
        metavar="BYTES",
        help="values differ by so much both ways [default: 0]",
    )
    parser.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="runs of each client [default: 3]"
    )
    parser.add_argument(
        "--clients",
        type=names(CLIENTS),
        default=list(CLIENTS),
        metavar="NAMES",
        help=f"of {','.join(CLIENTS)}",
    )
    parser.add_argument(
        "--directions",
        type=names(DIRECTIONS),
        default=list(DIRECTIONS),
        metavar="NAMES",
        help=",".join(DIRECTIONS),
    )
    parser.add_argument(
        "--broker",
        type=address,
        metavar="HOST:PORT",
        help="use a running broker instead of a new mqd node",
    )
    parser.add_argument(
        "--data",
        metavar="DIR",
        help="where the node keeps its data [default: the temporary directory]",
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures there, too")
    return parser.parse_args()


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def names(known: tuple[str, ...]) -> Callable[[str], list[str]]:
    def parse_names(text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := [name for name in chosen if name not in known]:
            raise argparse.ArgumentTypeError(
                f"unknown name '{unknown[0]}'. Choose among {', '.join(known)}"
            )
        return chosen

    return parse_names


def address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise argparse.ArgumentTypeError(f"'{text}' is not HOST:PORT")
    return host, int(port)


def measure(broker: Broker, load: Load, options: argparse.Namespace) -> Iterator[Figure]:
    """The figures of one value size. All consumers read one topic, which is filled once; each
    producer gets its own topic.
    """
    warm_up = Load(
        min(load.records, WARM_UP_RECORDS), load.value_bytes, load.key_bytes, load.spread
    )
    for _ in range(2):
        in_new_topic(broker, FILLER, warm_up)
    source = broker.make_topic("source")
    play(FILLER, "produce", broker, source, load)
    for direction in options.directions:
        walls: dict[str, list[float]] = {client: [] for client in options.clients}
        costs: dict[str, list[float]] = {client: [] for client in options.clients}
        for turn in range(options.rounds):
            first = turn % len(options.clients)
            for client in options.clients[first:] + options.clients[:first]:
                if direction == "produce":
                    wall, cpu = in_new_topic(broker, client, load)
                else:
                    wall, cpu = play(client, direction, broker, source, load)
                walls[client].append(load.records / wall)
                costs[client].append(load.records / cpu)
        yield from compare(direction, load, walls, costs)
    broker.drop_topic(source)


def in_new_topic(broker: Broker, client: str, load: Load) -> tuple[float, float]:
    topic = broker.make_topic(client)
    seconds = play(client, "produce", broker, topic, load)
    broker.drop_topic(topic)
    return seconds


def play(client: str, role: str, broker: Broker, topic: str, load: Load) -> tuple[float, float]:
    """Returns (wall seconds, CPU seconds) of one run."""
    sizes = [str(each) for each in (load.records, load.value_bytes, load.key_bytes, load.spread)]
    command = [
        sys.executable,
        "-m",
        "bench.client_roles",
        client,
        role,
        broker.bootstrap,
        topic,
        *sizes,
    ]
    result = run(command)
    return result["wall"], result["cpu"]


def compare(
    direction: str, load: Load, walls: dict[str, list[float]], costs: dict[str, list[float]]
) -> list[Figure]:
    wall = {client: statistics.median(values) for client, values in walls.items()}
    cpu = {client: statistics.median(values) for client, values in costs.items()}
    by = YARDSTICK if YARDSTICK in wall else None
    return [
        Figure(
            direction,
            load.value_bytes,
            client,
            wall[client],
            cpu[client],
            None if by is None else wall[client] / wall[by],
            None if by is None else cpu[client] / cpu[by],
        )
        for client in wall
    ]


def render(figure: Figure) -> str:
    text = f"{figure.direction:9}{figure.value_bytes:>7}  {figure.client:17}"
    text += f"{figure.wall:>12,.0f}{figure.cpu:>12,.0f}"
    if figure.times_wall is None or figure.times_cpu is None:
        return text
    text += f"{figure.times_wall:>17.2f}{figure.times_cpu:>8.2f}"
    goal = GOALS.get(figure.client)
    if goal is not None:
        text += f"  >= {goal:g}{' ok' if figure.times_wall >= goal else ' missed'}"
    return text


if __name__ == "__main__":
    sys.exit(main())
