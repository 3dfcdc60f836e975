"""`mqctl broker`, `partition` and `cluster`, with a fake cluster of three nodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from chaos.node import free_ports
from mqctl import moving
from mqd.errors import ErrorCode
from tests.client.fake import (
    ALTER_REASSIGNMENTS,
    DESCRIBE_QUORUM,
    LIST_REASSIGNMENTS,
    METADATA,
    FakePartition,
    Hang,
    quorum_row,
)
from tests.client.loopback import Loopback
from tests.ran import Ran

Mqctl = Callable[..., Ran]
DESCRIBE_CONFIGS, DESCRIBE_LOG_DIRS = 32, 35


@pytest.fixture
def three(served: Loopback, monkeypatch: pytest.MonkeyPatch) -> Loopback:
    """Three nodes behind one port, and topic `a` with three partitions of two replicas each."""
    monkeypatch.setattr(moving, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(moving, "REPORT_SECONDS", 0.0)

    def build() -> None:
        for node in (2, 3):
            served.cluster.addresses[node] = ("127.0.0.1", served.port)
        for each, replicas in zip(
            served.cluster.add_topic("a", 3), ([1, 2], [2, 3], [3, 1]), strict=True
        ):
            each.leader, each.replicas = replicas[0], replicas
        served.cluster.quorum = {
            "leader_id": 1,
            "leader_epoch": 3,
            "high_watermark": 10,
            "current_voters": [quorum_row(node) for node in (1, 2, 3)],
        }

    served.inside(build)
    return served


def partition(served: Loopback, index: int) -> FakePartition:
    return served.cluster.topics["a"][index]


def lose(served: Loopback, node: int) -> None:
    """The node is fenced, and leads nothing."""
    served.cluster.fenced.add(node)
    for each in served.cluster.topics["a"]:
        each.isr = [one for one in each.held if one not in served.cluster.fenced] or None
        if each.leader == node:
            each.leader = each.isr[0] if each.isr else -1


def test_brokers_are_listed_and_described(mqctl: Mqctl, three: Loopback) -> None:
    three.inside(lambda: lose(three, 3))
    rows = mqctl("broker", "list", "-o", "json").data
    assert [
        (
            row["broker"],
            row["state"],
            row["leads"],
            row["preferred"],
            row["replicas"],
            row["not_in_sync"],
        )
        for row in rows
    ] == [
        (1, "alive", 2, 1, 2, 0),
        (2, "alive", 1, 1, 2, 0),
        (3, "fenced", 0, 1, 2, 2),
    ]
    assert "BROKER  HOST" in mqctl("broker", "list").out
    mqctl("topic", "config", "set", "a", "retention.ms=1")
    described = mqctl("broker", "describe", "3", "-o", "json").data
    assert described["lagging"] == ["a-1", "a-2"] and described["directories"] == []
    text = mqctl("broker", "describe", "1").out
    assert "\nsize " in text and "\nfree " in text and "usable bytes" not in text
    assert "/data" in text and "/broken" in text and "50 B" in text
    ran = mqctl("broker", "describe", "7")
    assert ran.code == 1 and "existing brokers: 1, 2, 3" in ran.err


def test_a_broker_that_denies_its_log_directories_is_alive(mqctl: Mqctl, served: Loopback) -> None:
    denied = {"error_code": ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "results": []}
    served.inside(lambda: served.cluster.one.script(DESCRIBE_LOG_DIRS, denied, denied))
    ran = mqctl("broker", "list", "-o", "json")
    assert [(row["state"], row["bytes"]) for row in ran.data] == [("alive", None)]
    assert ran.code == 3 and "Cluster authorization failed." in ran.err
    ran = mqctl("broker", "list")
    (row,) = [line.split() for line in ran.out.splitlines()[1:]]
    assert "alive" in row and row[-2:] == ["-", "-"]


def test_an_unreachable_broker_is_reported(mqctl: Mqctl, three: Loopback) -> None:
    """Not fenced yet."""
    (port,) = free_ports(1)
    three.inside(lambda: three.cluster.addresses.update({3: ("127.0.0.1", port)}))
    ran = mqctl("broker", "list", "-o", "json", "--timeout", "60")
    assert ran.code == 3 and [row["bytes"] is None for row in ran.data] == [False, False, True]
    assert [row["state"] for row in ran.data] == ["alive", "alive", "silent"]
    assert (
        f"broker 3: nothing listens at 127.0.0.1:{port}" in ran.err and "start broker 3" in ran.err
    )
    ran = mqctl("broker", "describe", "3", "--timeout", "60")
    assert ran.code == 3 and "broker 3: nothing listens" in ran.err and "silent" in ran.out
    assert mqctl("broker", "describe", "1").code == 0


def test_partitions_are_filtered_by_their_problems(mqctl: Mqctl, three: Loopback) -> None:
    def places(*arguments: str) -> list[int]:
        return [
            row["partition"] for row in mqctl("partition", "list", "-o", "json", *arguments).data
        ]

    assert places() == [0, 1, 2] and places("--under-replicated") == places("--leaderless") == []
    assert mqctl("partition", "list", "--leaderless").err == "no partition matches\n"
    three.inside(lambda: three.cluster.configs.__setitem__((2, "a"), {"min.insync.replicas": "3"}))
    assert places("--under-min-isr") == []  # more than the number of replicas counts as all of them
    three.inside(lambda: lose(three, 3))
    assert (
        places("--under-replicated") == places("--offline") == places("--under-min-isr") == [1, 2]
    )
    assert (
        places("--broker", "1") == [0, 2]
        and places("--broker", "1", "--offline") == [2]
        and places("--topic", "b*") == []
    )
    three.inside(lambda: lose(three, 2))
    assert places("--leaderless") == [1] and places("--leaderless", "--under-replicated") == [
        0,
        1,
        2,
    ]
    row = mqctl("partition", "list", "--leaderless", "-o", "json").data[0]
    assert row["leader"] is None and row["state"][:2] == ["leaderless", "offline"]
    assert "leaderless" in mqctl("partition", "list").out


def test_a_replica_that_is_being_added_is_not_under_replicated(
    mqctl: Mqctl, three: Loopback
) -> None:
    three.inside(lambda: setattr(three.cluster, "moves_hang", True))
    assert mqctl("partition", "move", "a:0=1,3", "--execute").code == 0
    (row,) = (row for row in mqctl("partition", "list", "-o", "json").data if row["partition"] == 0)
    assert row["state"] == ["moving"] and row["replicas"] == [1, 3, 2]
    assert mqctl("cluster", "health", "-o", "json").data["findings"][-1]["check"] == "disks"


def test_leaders_are_elected(mqctl: Mqctl, three: Loopback) -> None:
    three.inside(lambda: setattr(partition(three, 0), "leader", 2))
    ran = mqctl("partition", "elect-leader", "a", "-o", "json")
    assert ran.code == 0 and [row["result"] for row in ran.data] == [
        "elected",
        "not needed",
        "not needed",
    ]
    assert mqctl("partition", "elect-leader", "--all").err == "no partition needs an election\n"
    assert "Partition 'a:9' does not exist." in mqctl("partition", "elect-leader", "a:9").err
    assert (
        mqctl("partition", "elect-leader").code
        == mqctl("partition", "elect-leader", "a", "--all").code
        == 2
    )
    for node in (2, 3):
        three.inside(partial(lose, three, node))
    ran = mqctl("partition", "elect-leader", "a:1", "--unclean")
    assert ran.code == 2 and "are lost permanently" in ran.err
    ran = mqctl("partition", "elect-leader", "a:1", "--unclean", "--yes")
    assert ran.code == 1 and "eligible leaders not available" in ran.err


def test_a_reassignment_is_planned_then_executed(
    mqctl: Mqctl, three: Loopback, tmp_path: Path
) -> None:
    before = tmp_path / "before.json"
    ran = mqctl("partition", "move", "a:0=3,1", "-o", "json")
    assert ran.data == [
        {
            "topic": "a",
            "partition": 0,
            "before": [1, 2],
            "after": [3, 1],
            "adding": [3],
            "removing": [2],
            "bytes_to_copy": 0,
        }
    ]
    assert ran.code == 0 and "nothing was changed" in ran.err and partition(three, 0).held == [1, 2]
    ran = mqctl(
        "partition",
        "move",
        "a:0=3,1",
        "--execute",
        "--wait",
        "--throttle",
        "5M",
        "--save",
        str(before),
    )
    assert ran.code == 0 and "1 of 1 partitions moved" in ran.err
    assert partition(three, 0).held == [3, 1]
    assert set(three.cluster.rates) == {5_000_000} and not any(three.cluster.configs.values())
    assert json.loads(before.read_text())["partitions"] == [
        {"topic": "a", "partition": 0, "replicas": [1, 2]}
    ]
    assert (
        "choose a file that does not exist"
        in mqctl("partition", "move", "a:0=1,2", "--save", str(before)).err
    )
    assert mqctl(
        "partition", "move", "-f", str(before), "--execute", "--wait"
    ).code == 0 and partition(three, 0).held == [1, 2]
    assert mqctl("partition", "move", "a:0=1,2").err == "nothing to move\n"
    ran = mqctl("partition", "move", "--from", "1", "--to", "3", "-o", "yaml")
    assert [row["after"] for row in yaml.safe_load(ran.out)] == [[3, 2]] and ran.code == 3
    assert "cannot move a-2: broker 3 already has a replica" in ran.err


def test_reassignments_show_progress_and_can_be_cancelled(mqctl: Mqctl, three: Loopback) -> None:
    three.inside(lambda: setattr(three.cluster, "moves_hang", True))
    ran = mqctl("partition", "move", "a:0=1,3", "a:1=2,1", "--execute", "--throttle", "1M")
    assert ran.code == 0 and "2 of 2 moves started" in ran.err and "the throttle stays" in ran.err
    rows = mqctl("partition", "move-status", "-o", "json").data
    assert [(row["partition"], row["adding"], row["removing"]) for row in rows] == [
        (0, [3], [2]),
        (1, [1], [3]),
    ]
    ran = mqctl("partition", "move-cancel", "a:0", "-o", "json")
    assert ran.data == [{"topic": "a", "partition": 0, "cancelled": True}] and any(
        three.cluster.configs.values()
    )
    assert mqctl("partition", "move-cancel", "--all").code == 0
    assert not any(three.cluster.configs.values()) and partition(three, 1).held == [2, 3]
    assert (
        mqctl("partition", "move-cancel", "--all").err
        == mqctl("partition", "move-status").err
        == "no moves in progress\n"
    )
    assert "no reassignment in progress" in mqctl("partition", "move-cancel", "a:0").err


def test_a_stalled_move_shows_the_reason(mqctl: Mqctl, three: Loopback) -> None:
    three.inside(lambda: setattr(three.cluster, "moves_hang", True))
    assert mqctl("partition", "move", "a:0=1,3", "a:1=2,1", "--execute").code == 0
    ran = mqctl("partition", "move-status")
    assert ran.code == 0 and "fenced" not in ran.out and not ran.err
    three.inside(lambda: three.cluster.fenced.add(3))
    three.inside(lambda: setattr(partition(three, 1), "leader", -1))
    ran = mqctl("partition", "move-status", "-o", "json")
    assert [row["stalled"] for row in ran.data] == [
        "broker 3 is fenced",
        "no leader to copy from",
    ]
    assert (
        "mqctl partition move-cancel" in ran.err
        and "STALLED" in mqctl("partition", "move-status").out
    )


def test_a_remaining_throttle_is_reported_and_removed(mqctl: Mqctl, three: Loopback) -> None:
    assert mqctl("partition", "move", "a:0=1,3", "--execute", "--throttle", "1M").code == 0
    ran = mqctl("partition", "move-status")
    assert "a throttle is still set on topic a, broker 1, broker 2, broker 3" in ran.err
    ran = mqctl("cluster", "health")
    assert ran.code == 1 and "a replication throttle is still set on topic a" in ran.out
    assert mqctl("partition", "move-status", "--clear-throttle").code == 0
    assert not any(three.cluster.configs.values())
    assert "no throttle is set" in mqctl("partition", "move-status", "--clear-throttle").err


def test_a_rejected_move_leaves_no_throttle(mqctl: Mqctl, three: Loopback) -> None:
    answer: dict[str, Any] = {
        "responses": [
            {
                "name": "a",
                "partitions": [{"partition_index": 0, "error_code": 39, "error_message": "no"}],
            }
        ]
    }
    three.inside(lambda: three.cluster.one.script(ALTER_REASSIGNMENTS, answer))
    ran = mqctl("partition", "move", "a:0=1,3", "--execute", "--throttle", "1M")
    assert ran.code == 1 and "a-0: no" in ran.err and not any(three.cluster.configs.values())


def test_impossible_moves_are_rejected_with_a_reason(
    mqctl: Mqctl, three: Loopback, tmp_path: Path
) -> None:
    ran = mqctl("partition", "move", "a:0=1,9", "b:0=1", "--execute")
    assert (
        ran.code == 1
        and "cannot move a-0: broker 9" in ran.err
        and "cannot move b-0: the partition does not exist" in ran.err
    )
    ran = mqctl("partition", "move", "a:0=1,9", "a:1=1,2", "--execute")
    assert ran.code == 1 and "nothing was moved" in ran.err and partition(three, 1).held == [2, 3]
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    for arguments in (
        [],
        ["a:0"],
        ["a:0=1", "a:0=2"],
        ["--from", "1"],
        ["--from", "1", "--to", "1"],
        ["a:0=1", "--from", "1", "--to", "2"],
        ["a:0=1", "--topic", "a"],
        ["a:0=1", "--wait"],
        ["a:0=1", "--execute", "--throttle", "fast"],
        ["-f", str(bad)],
    ):
        ran = mqctl("partition", "move", *arguments)
        assert ran.code == 2 and "Error:" in ran.err, arguments
    assert (
        "broker 9 is unknown or not alive"
        in mqctl("partition", "move", "--from", "1", "--to", "9").err
    )
    ran = mqctl("partition", "move", "--from", "9", "--to", "1")
    assert ran.code == 1 and "broker 9 is unknown" in ran.err and "mqctl broker list" in ran.err


def test_replicas_move_off_an_unregistered_broker(mqctl: Mqctl, three: Loopback) -> None:
    """Apache Kafka may omit dead brokers from its response."""
    three.inside(lambda: three.cluster.addresses.pop(3))
    ran = mqctl("partition", "move", "--from", "3", "--to", "1", "-o", "json")
    assert ran.code == 3 and [row["after"] for row in ran.data] == [[2, 1]]


def test_a_move_drops_replicas_only_with_the_option(
    mqctl: Mqctl, three: Loopback, tmp_path: Path
) -> None:
    file = tmp_path / "moves.json"
    file.write_text('{"partitions": [{"topic": "a", "partition": 0, "replicas": [2]}]}')
    for how in (["a:0=2"], ["--file", str(file)]):
        ran = mqctl("partition", "move", *how, "--execute")
        assert (
            ran.code == 1
            and "cannot move a-0: only 1 of 2 replicas would remain" in ran.err
            and "--allow-fewer-replicas" in ran.err
        )
        assert partition(three, 0).held == [1, 2]
    assert mqctl(
        "partition", "move", "a:0=2", "--execute", "--allow-fewer-replicas"
    ).code == 0 and partition(three, 0).held == [2]
    assert (
        mqctl("partition", "move", "--from", "1", "--to", "2", "--allow-fewer-replicas").code == 2
    )


def test_a_broker_is_drained(mqctl: Mqctl, three: Loopback) -> None:
    ran = mqctl("broker", "drain", "3")
    assert ran.code == 0 and "nothing was changed" in ran.err
    ran = mqctl("broker", "drain", "3", "--execute", "--wait")
    assert ran.code == 0, ran.err
    assert all(3 not in each.held and len(each.held) == 2 for each in three.cluster.topics["a"])
    ran = mqctl("broker", "drain", "2", "--execute")
    assert ran.code == 0 and all(2 not in each.held for each in three.cluster.topics["a"])


def test_a_drain_of_the_only_broker_is_an_error(mqctl: Mqctl, served: Loopback) -> None:
    served.inside(lambda: served.cluster.add_topic("a"))
    ran = mqctl("broker", "drain", "1", "-o", "json")
    assert ran.code == 1 and [each["message"] for each in ran.data["errors"]] == [
        "cannot move a-0: no other broker is alive",
        "no replica can leave broker 1",
    ]
    assert "error: no replica can leave broker 1\n  add a broker, or use --allow-fewer" in ran.err


def test_a_drain_without_another_broker_needs_allow_fewer_replicas(
    mqctl: Mqctl, three: Loopback
) -> None:
    three.inside(lambda: lose(three, 3))
    ran = mqctl("broker", "drain", "2", "--execute")
    assert (
        ran.code == 1
        and "cannot move a-0: 2 replicas need 2 other brokers; alive: 1" in ran.err
        and "--allow-fewer-replicas" in ran.err
    )
    planned = mqctl("broker", "drain", "2")
    assert planned.code == 3 and "error: 1 of 2 replicas cannot leave broker 2\n" in planned.err
    ran = mqctl("broker", "drain", "2", "--execute", "--allow-fewer-replicas")
    assert ran.code == 0 and [each.held for each in three.cluster.topics["a"]] == [
        [1],
        [1, 3],
        [3, 1],
    ]


def test_leaders_only_moves_leaderships_and_no_replicas(mqctl: Mqctl, three: Loopback) -> None:
    ran = mqctl("broker", "drain", "3", "--leaders-only", "--execute")
    assert (
        ran.code == 0
        and "broker 3 now leads none" in ran.err
        and "continue in the cluster" not in ran.err
    )
    assert [sorted(each.held) for each in three.cluster.topics["a"]] == [[1, 2], [2, 3], [1, 3]]
    assert all(each.leader != 3 and each.held[0] != 3 for each in three.cluster.topics["a"])
    three.inside(lambda: setattr(partition(three, 2), "isr", [1]))
    three.inside(lambda: setattr(partition(three, 2), "leader", 1))
    ran = mqctl("partition", "move", "a:0=2,1", "--execute", "--throttle", "1M")
    assert ran.code == 0 and "1 of 1 moves started" in ran.err
    assert "continue in the cluster" not in ran.err and "the throttle stays" not in ran.err
    assert mqctl("partition", "move", "a:0=1,2", "--execute").code == 0
    ran = mqctl("broker", "drain", "1", "--leaders-only", "--execute")
    assert ran.code == 3 and "cannot move a-2: no other replica is in sync" in ran.err


def test_only_a_fenced_and_empty_broker_is_unregistered(mqctl: Mqctl, three: Loopback) -> None:
    assert "broker 3 is still alive" in mqctl("broker", "unregister", "3", "-y").err
    three.inside(lambda: lose(three, 3))
    assert "still has replicas of 2 partitions" in mqctl("broker", "unregister", "3", "-y").err
    assert mqctl("broker", "drain", "3", "--execute").code == 0
    assert mqctl("broker", "unregister", "3").code == 2
    assert mqctl("broker", "unregister", "3", "-y").code == 0
    assert [row["broker"] for row in mqctl("broker", "list", "-o", "json").data] == [1, 2]


def test_the_quorum_is_shown(mqctl: Mqctl, three: Loopback) -> None:
    late = quorum_row(3, end=4, now=60_000)
    three.inside(
        lambda: three.cluster.quorum.update(
            current_voters=[quorum_row(1), quorum_row(2), late], observers=[quorum_row(4)]
        )
    )
    data = mqctl("cluster", "quorum", "-o", "json").data
    assert data["leader"] == 1 and data["majority"] == 2
    assert [(row["role"], row["lag"], row["state"]) for row in data["nodes"]] == [
        ("leader", 0, "ok"),
        ("voter", 0, "ok"),
        ("voter", 6, "has lagged for 40s"),
        ("observer", 0, "ok"),
    ]
    assert "40s ago" in mqctl("cluster", "quorum").out
    assert mqctl("cluster", "info", "-o", "json").data["controller"] == 1


def test_health(mqctl: Mqctl, three: Loopback) -> None:
    ran = mqctl("cluster", "health")
    assert ran.code == 1 and "log directory /broken" in ran.out  # the model's disk
    three.inside(lambda: lose(three, 3))
    ran = mqctl("cluster", "health")
    assert ran.code == 1 and ran.out.startswith("NOT HEALTHY ")
    assert (
        f"broker 3 at 127.0.0.1:{three.port} is fenced" in ran.out
        and "-> restart broker 3" in ran.out
    )
    data = mqctl("cluster", "health", "-o", "json").data
    assert data["healthy"] is False
    assert {(each["check"], each["level"]) for each in data["findings"]} >= {
        ("brokers", "bad"),
        ("replication", "warning"),
        ("disks", "bad"),
    }
    three.inside(
        lambda: three.cluster.one.script(
            DESCRIBE_QUORUM, {"error_code": 42, "error_message": "who knows"}
        )
    )
    assert "no controller: describing the quorum: who knows" in mqctl("cluster", "health").out


def test_without_a_controller_the_other_information_is_shown(
    mqctl: Mqctl, three: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that only the controller can process get no response, nor do later requests of the
    same connection.
    """
    for name in (
        "snapshot.OPTIONAL_SECONDS",
        "commands.cluster.QUORUM_SECONDS",
        "commands.health.REQUEST_SECONDS",
    ):
        monkeypatch.setattr(f"mqctl.{name}", 0.5)
    for key in (DESCRIBE_QUORUM, LIST_REASSIGNMENTS):
        three.inside(partial(three.cluster.one.script, key, *[Hang()] * 9))
    three.inside(lambda: lose(three, 3))
    ran = mqctl("cluster", "health")
    assert (
        ran.code == 1
        and "no controller: no response within" in ran.out
        and "under-replicated" in ran.out
    )
    assert "cannot get the state" not in ran.out and "log directories of" not in ran.out
    ran = mqctl("cluster", "info", "-o", "json")
    assert (
        ran.code == 3
        and ran.data["controller"] is None
        and ran.data["partitions"] == 3
        and "mqctl cluster health" in ran.err
    )
    assert [row["state"] for row in ran.data["brokers"]] == ["unknown", "unknown", "fenced"]
    ran = mqctl("partition", "list", "--under-replicated", "-o", "json")
    assert ran.code == 3 and len(ran.data) == 2
    assert (
        "waiting for the controller to list reassignments" in ran.err
        and "mqctl cluster health" in ran.err
    )
    assert mqctl("broker", "list").code == 0
    ran = mqctl("cluster", "quorum", "--timeout", "0.5")
    assert ran.code == 4 and "mqctl cluster health" in ran.err


def test_info_exits_with_3_only_if_the_quorum_has_no_leader(mqctl: Mqctl, three: Loopback) -> None:
    def leaderless(why: str) -> None:
        ran = mqctl("cluster", "info", "-o", "json")
        assert (
            ran.code == 3
            and ran.data["controller"] is None
            and {row["state"] for row in ran.data["brokers"]} == {"unknown"}
        )
        assert why in ran.err

    three.inside(
        lambda: three.cluster.one.script(DESCRIBE_QUORUM, {"error_code": 31, "error_message": None})
    )
    leaderless("Cluster authorization failed.")
    three.inside(lambda: three.cluster.quorum.update(leader_id=-1))
    leaderless("the metadata quorum has no leader")
    ran = mqctl("cluster", "info")
    assert ran.code == 3 and "BROKER  HOST" in ran.out
    three.inside(lambda: three.cluster.one.versions.pop(DESCRIBE_QUORUM))
    ran = mqctl("cluster", "info", "-o", "json")
    assert (
        ran.code == 0
        and not ran.err
        and ran.data["controller"] == 1
        and ran.data["brokers"][0]["state"] == "alive"
    )
    three.inside(lambda: setattr(three.cluster, "controller", -1))
    assert mqctl("cluster", "info").code == 3


def test_partitions_are_listed_if_min_insync_replicas_is_unknown(
    mqctl: Mqctl, three: Loopback
) -> None:
    three.inside(lambda: three.cluster.one.script(DESCRIBE_CONFIGS, *[Hang()] * 9))
    ran = mqctl("partition", "list", "--timeout", "0.2", "-o", "json")
    assert (
        ran.code == 3
        and len(ran.data) == 3
        and "min.insync.replicas" in ran.err
        and "mqctl cluster health" in ran.err
    )


def test_health_of_an_unreachable_cluster(mqctl: Mqctl, served: Loopback) -> None:
    ran = mqctl("-b", "127.0.0.1:1", "cluster", "health")
    assert ran.code == 1 and "--bootstrap" in ran.err
    served.inside(lambda: served.cluster.one.script(METADATA, Hang()))
    ran = mqctl("cluster", "health", "--timeout", "0.1")
    assert ran.code == 1 and "--bootstrap" in ran.err and "cluster health" not in ran.err
