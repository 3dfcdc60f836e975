"""kcat from the command line: -L, -P, -C, -Q."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable

import pytest

from .clients import CODECS, Confluent, Message, kcat, kcat_json
from .conftest import Broker
from .wire import Wire, create_topic

pytestmark = pytest.mark.skipif(
    shutil.which("kcat") is None, reason="kcat is not installed (Debian: apt install kcat)"
)

FIRST_MS = 1_700_000_000_000


def test_list(broker: Broker, wire: Wire, new_name: Callable[[], str]) -> None:
    topic = create_topic(wire, new_name(), partitions=3)
    listed = json.loads(kcat(broker.address, "-L", "-J", "-t", topic))
    assert sorted(row["name"] for row in listed["brokers"]) == sorted(broker.address.split(","))
    (row,) = listed["topics"]
    assert (row["topic"], len(row["partitions"])) == (topic, 3)
    nodes = {one["id"] for one in listed["brokers"]}
    assert all(p["leader"] in nodes and p["isrs"] == p["replicas"] for p in row["partitions"])
    assert topic in kcat(broker.address, "-L").decode()


@pytest.mark.parametrize("codec", CODECS)
def test_produce_and_consume(broker: Broker, topic: str, codec: str) -> None:
    lines = b"".join(b"key-%d\tvalue %d\n" % (i, i) for i in range(1000))
    kcat(
        broker.address,
        "-P",
        "-t",
        topic,
        "-p",
        "0",
        "-K",
        "\t",
        "-z",
        codec,
        "-H",
        "a=1",
        "-H",
        "a=2",
        stdin=lines,
    )
    rows = kcat_json(
        broker.address,
        "-C",
        "-t",
        topic,
        "-p",
        "0",
        "-o",
        "beginning",
        "-e",
        "-q",
        "-X",
        "check.crcs=true",
    )
    assert [(row["offset"], row["key"], row["payload"]) for row in rows] == [
        (i, f"key-{i}", f"value {i}") for i in range(1000)
    ]
    assert all(row["headers"] == ["a", "1", "a", "2"] for row in rows)


@pytest.mark.parametrize(
    ("position", "first"), [("beginning", 0), ("7", 7), ("-3", 17), (f"s@{FIRST_MS + 4500}", 5)]
)
def test_consume_from(broker: Broker, topic: str, position: str, first: int) -> None:
    Confluent().produce(
        broker.address,
        topic,
        [Message(str(i).encode(), timestamp_ms=FIRST_MS + i * 1000) for i in range(20)],
    )
    rows = kcat_json(broker.address, "-C", "-t", topic, "-p", "0", "-o", position, "-e", "-q")
    assert [row["offset"] for row in rows] == list(range(first, 20))


def test_null_values(broker: Broker, topic: str) -> None:
    kcat(broker.address, "-P", "-t", topic, "-K", ":", "-Z", stdin=b"k:\n:v\n")
    rows = kcat_json(broker.address, "-C", "-t", topic, "-o", "beginning", "-e", "-q")
    assert [(row["key"], row["payload"]) for row in rows] == [("k", None), (None, "v")]


def test_query_offsets(broker: Broker, topic: str) -> None:
    Confluent().produce(
        broker.address, topic, [Message(b"v", timestamp_ms=FIRST_MS + i * 1000) for i in range(10)]
    )
    for stamp, offset in (
        (FIRST_MS, 0),
        (FIRST_MS + 2500, 3),
        (-1, 10),
        (-2, 0),
        (FIRST_MS + 99_000, -1),
    ):
        assert kcat(broker.address, "-Q", "-t", f"{topic}:0:{stamp}").decode().split() == [
            topic,
            "[0]",
            "offset",
            str(offset),
        ], stamp


def test_the_end_of_an_empty_topic(broker: Broker, topic: str) -> None:
    assert kcat(broker.address, "-C", "-t", topic, "-o", "beginning", "-e", "-q") == b""
