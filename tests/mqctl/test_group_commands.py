"""mqctl group and txn as a user runs them, against a model broker on loopback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mqd.client.sync import connect
from mqd.types import TopicPartition
from tests.client.loopback import Loopback
from tests.client.test_consumer import fill
from tests.mqctl.conftest import Ran

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
Mqctl = Callable[..., Ran]


@pytest.fixture
def filled(served: Loopback) -> Loopback:
    def make() -> None:
        for partition in served.cluster.add_topic("a", 2):
            fill(partition, 20)
        group = served.cluster.one._group("g")
        group.offsets |= {A0: (5, ""), A1: (20, "")}

    served.inside(make)
    return served


def offsets(served: Loopback) -> dict[int, int]:
    return {tp.partition: offset for tp, (offset, _) in served.inside(lambda: served.cluster.groups["g"].offsets).items()}


def test_groups_and_their_lag(mqctl: Mqctl, filled: Loopback) -> None:
    assert mqctl("group", "list", "-o", "json").data == [
        {"group": "g", "state": "Empty", "type": "classic", "protocol_type": "consumer", "coordinator": 1}
    ]
    assert mqctl("group", "list", "x*").err == "no group is like that\n"
    with connect(filled.address) as client, client.group_consumer("g", ["a"], group_protocol="classic") as consumer:
        assert consumer.next(timeout_s=10) is not None
        (described,) = mqctl("group", "describe", "g", "-o", "json").data
        assert described["state"] == "Stable" and described["members"][0]["partitions"] == {"a": [0, 1]}
        table = mqctl("group", "describe", "g").out
        assert "assignor       range" in table and "a:0,1" in table
        rows = mqctl("group", "lag", "g", "-o", "json").data
        assert [(row["partition"], row["committed"], row["end"], row["lag"], row["client"]) for row in rows] == [
            (0, 5, 20, 15, "mqd"),
            (1, 20, 20, 0, "mqd"),
        ]
        ran = mqctl("group", "seek", "g", "--to", "beginning", "--execute")
        assert ran.code == 1 and "group 'g' is Stable with 1 member(s)" in ran.err and "stop its members first" in ran.err
        assert mqctl("group", "delete", "g", "-y").code == 1
        ran = mqctl("group", "delete-offsets", "g", "a", "-y")
        assert ran.code == 1 and "stop the members that read it" in ran.err
    ran = mqctl("group", "lag", "--all", "--total")
    assert ran.out.splitlines()[1].split() == ["g", "2", "0", ran.out.split()[-1]]
    ran = mqctl("group", "describe", "g", "none")
    assert ran.code == 3 and "'none': it does not exist" in ran.err and "mqctl group list" in ran.err
    assert mqctl("group", "lag").code == 2


def test_seek_shows_its_plan_and_moves_only_when_told(mqctl: Mqctl, filled: Loopback, tmp_path: Path) -> None:
    saved = str(tmp_path / "before.csv")
    ran = mqctl("group", "seek", "g", "--to", "beginning", "--save", saved, "-o", "json")
    assert ran.data == [
        {"topic": "a", "partition": 0, "before": 5, "after": 0, "note": None},
        {"topic": "a", "partition": 1, "before": 20, "after": 0, "note": None},
    ]
    assert "say it again with --execute" in ran.err and offsets(filled) == {0: 5, 1: 20}
    assert mqctl("group", "seek", "g", "a:1", "--to", "@15000", "--execute").code == 0
    assert offsets(filled) == {0: 5, 1: 15}
    ran = mqctl("group", "seek", "g", "a:0", "--shift", "-9", "--execute")
    assert "-4 is before the beginning" in ran.out and "goes on there" in ran.err and offsets(filled) == {0: 0, 1: 15}
    assert mqctl("group", "seek", "g", "--to", "-3", "--execute").code == 0
    assert offsets(filled) == {0: 17, 1: 17}
    assert mqctl("group", "seek", "g", "--file", saved, "--execute").code == 0
    assert offsets(filled) == {0: 5, 1: 20}
    ran = mqctl("group", "seek", "g", "--to", "end", "--save", saved)
    assert ran.code == 1 and "cannot be written" in ran.err


def test_seek_makes_a_group_that_does_not_exist(mqctl: Mqctl, filled: Loopback) -> None:
    ran = mqctl("group", "seek", "fresh", "--to", "end")
    assert ran.code == 1 and "'fresh' has committed nothing" in ran.err
    assert mqctl("group", "seek", "fresh", "a", "--to", "end", "--execute").code == 0
    assert filled.inside(lambda: filled.cluster.groups["fresh"].offsets) == {A0: (20, ""), A1: (20, "")}


def test_seek_says_what_is_wrong(mqctl: Mqctl, filled: Loopback, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("a,0\n")
    for arguments in (
        ["--to", "x"],
        [],
        ["--to", "end", "--shift", "1"],
        ["--file", str(lines)],
        ["a:x", "--to", "end"],
        ["a", "-f", str(lines)],
    ):
        ran = mqctl("group", "seek", "g", *arguments)
        assert ran.code == 2 and "Error:" in ran.err, arguments
    assert "'none' does not exist" in mqctl("group", "seek", "g", "none", "--to", "end").err
    assert "has no partition 7" in mqctl("group", "seek", "g", "a:7", "--to", "end").err


def test_groups_and_offsets_go_when_one_agrees(mqctl: Mqctl, filled: Loopback) -> None:
    ran = mqctl("group", "delete-offsets", "g", "a:1")
    assert ran.code == 2 and "forgets where it is in a:1" in ran.err
    assert mqctl("group", "delete-offsets", "g", "a:1", "--yes", "-o", "json").data == [{"topic": "a", "partition": 1, "deleted": True}]
    assert offsets(filled) == {0: 5}
    assert mqctl("group", "delete-offsets", "g", "a:1", "-y").code == 1
    ran = mqctl("group", "delete", "g", "none", "-y", "-o", "json")
    assert ran.code == 3 and ran.data == [{"group": "g", "deleted": True}, {"group": "none", "deleted": False}]
    assert mqctl("group", "delete", "none", "-y", "--if-exists").code == 0


def test_transactions(mqctl: Mqctl, filled: Loopback) -> None:
    assert mqctl("txn", "list").err == "no transactional ids\n"
    with connect(filled.address) as client, client.transactional_producer("t") as producer:
        with producer.transaction():
            producer.send("a", b"x", partition=0)
        producer.begin()
        producer.send("a", b"x", partition=0)
        (row,) = mqctl("txn", "list", "--state", "ongoing", "-o", "json").data
        assert row["transactional_id"] == "t" and row["state"] == "Ongoing"
        assert mqctl("txn", "list", "--state", "Empty").err == "no transactional id is like that\n"
        (described,) = mqctl("txn", "describe", "t", "-o", "json").data
        assert described["partitions"] == ["a:0"] and described["started"] == "1970-01-01T00:00:01.000Z"
        assert "open_for" in mqctl("txn", "describe", "t").out
        assert mqctl("txn", "find-hanging").err == "no transaction hangs\n"
        filled.inside(lambda: filled.cluster.transactions["t"].partitions.clear())
        ran = mqctl("txn", "find-hanging", "--topic", "a*", "--older-than", "90s", "-o", "json")
        assert [(row["partition"], row["start_offset"], row["transactional_id"]) for row in ran.data] == [(0, 22, "t")]
        assert ran.err == "mqctl txn abort a:0 --start-offset 22\n"
        ran = mqctl("txn", "abort", "a:0", "--start-offset", "22")
        assert ran.code == 2 and "begins at offset 22 of a:0" in ran.err
        assert mqctl("txn", "abort", "a:0", "--start-offset", "22", "-y").code == 0
        assert filled.inside(lambda: filled.cluster.partition(A0).open) == {}
        assert "no open transaction at offset 22" in mqctl("txn", "abort", "a:0", "--start-offset", "22", "-y").err
        assert mqctl("txn", "fence", "t").code == 2
        ran = mqctl("txn", "fence", "t", "-y", "-o", "json")
        assert ran.data[0]["producer_epoch"] == producer._twin.producer[1] + 1  # type: ignore[attr-defined]
    for arguments in (
        ["abort", "a:0"],
        ["abort", "a", "--producer-id", "1"],
        ["find-hanging", "--older-than", "long"],
        ["list", "--state", "Merry"],
    ):
        assert mqctl("txn", *arguments).code == 2, arguments
    assert "'none': it does not exist" in mqctl("txn", "describe", "none").err
