"""`mqctl group` and `mqctl txn`, with a fake broker on loopback."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chaos.node import free_ports
from mqd.client.admin import Admin
from mqd.client.group_descriptions import PartitionLag
from mqd.client.sync import connect
from mqd.types import TopicPartition
from tests.client.loopback import Loopback
from tests.client.test_consumer import fill
from tests.ran import Ran

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
REFUSED = {"partition_index": 1, "error_code": 29, "error_message": "not for you"}
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
    return {
        tp.partition: offset
        for tp, (offset, _) in served.inside(lambda: served.cluster.groups["g"].offsets).items()
    }


def test_groups_and_their_lag(mqctl: Mqctl, filled: Loopback) -> None:
    assert mqctl("group", "list", "-o", "json").data == [
        {
            "group": "g",
            "state": "Empty",
            "type": "classic",
            "protocol_type": "consumer",
            "coordinator": 1,
        }
    ]
    assert mqctl("group", "list", "x*").err == "no group matches\n"
    with (
        connect(filled.address) as client,
        client.group_consumer("g", ["a"], group_protocol="classic") as consumer,
    ):
        assert consumer.next(timeout_s=10) is not None
        (described,) = mqctl("group", "describe", "g", "-o", "json").data
        assert described["state"] == "Stable" and described["members"][0]["partitions"] == {
            "a": [0, 1]
        }
        table = mqctl("group", "describe", "g").out
        assert "assignor       range" in table and "a:0,1" in table
        rows = mqctl("group", "lag", "g", "-o", "json").data
        assert [
            (row["partition"], row["committed"], row["end"], row["lag"], row["client"])
            for row in rows
        ] == [
            (0, 5, 20, 15, "mqd"),
            (1, 20, 20, 0, "mqd"),
        ]
        ran = mqctl("group", "seek", "g", "--to", "beginning", "--execute")
        assert (
            ran.code == 1
            and "group 'g' is Stable with 1 member(s)" in ran.err
            and "stop its members first" in ran.err
        )
        assert mqctl("group", "delete", "g", "-y").code == 1
        ran = mqctl("group", "delete-offsets", "g", "a", "-y")
        assert ran.code == 1 and "stop the members that subscribe to it" in ran.err
    ran = mqctl("group", "lag", "--all", "--total")
    assert ran.out.splitlines()[1].split() == ["g", "2", "0", "0", ran.out.split()[-1]]
    ran = mqctl("group", "describe", "g", "none")
    assert ran.code == 3 and "'none' does not exist." in ran.err and "mqctl group list" in ran.err
    assert mqctl("group", "lag").code == 2
    assert (
        mqctl("group", "list", "--state", "Merry").code == 2
        and mqctl("group", "list", "--type", "merry").code == 2
    )


def test_lag_counts_what_no_member_of_a_share_group_accepted(
    mqctl: Mqctl, filled: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def group_lags(admin: Admin, names: Any, **options: Any) -> Any:
        return {
            name: [
                PartitionLag(TopicPartition("a", one), None, 0, 20, None, 0, expired=4, given_up=3)
                for one in (0, 1)
            ]
            for name in names
        }

    assert "GIVEN-UP" not in mqctl("group", "lag", "g").out
    monkeypatch.setattr(Admin, "group_lags", group_lags)
    assert mqctl("group", "lag", "g").out.split()[6:8] == ["EXPIRED", "GIVEN-UP"]
    assert [row["given_up"] for row in mqctl("group", "lag", "g", "-o", "json").data] == [3, 3]
    [total] = mqctl("group", "lag", "g", "--total", "-o", "json").data
    assert (total["expired"], total["given_up"]) == (8, 6)


def test_groups_of_nodes_are_omitted(mqctl: Mqctl, filled: Loopback) -> None:
    relay = "__mqd_relay.delay.other"

    def make() -> None:
        filled.cluster.add_topic("other")
        filled.cluster.one._group(relay).offsets[TopicPartition("other", 0)] = 0, ""

    filled.inside(make)
    for arguments, groups in (
        (["--all"], ["g"]),
        (["--all", "--internal"], [relay, "g"]),
        ([relay], [relay]),
    ):
        ran = mqctl("group", "lag", *arguments, "--total", "-o", "json")
        assert [row["group"] for row in ran.data] == groups, arguments
    assert mqctl("group", "lag", "g", "--internal").code == 2
    for arguments, groups in (([], ["g"]), (["--internal"], [relay, "g"]), (["__mqd*"], [])):
        ran = mqctl("group", "list", *arguments, "-o", "json")
        assert [row["group"] for row in ran.data] == groups, arguments


def test_lag_of_all_groups_omits_groups_without_matching_partitions(
    mqctl: Mqctl, filled: Loopback
) -> None:
    def make() -> None:
        filled.cluster.one._group("idle")
        filled.cluster.add_topic("other")
        filled.cluster.one._group("other").offsets[TopicPartition("other", 0)] = 0, ""

    filled.inside(make)
    for arguments, groups in (
        ([], ["g", "other"]),
        (["-t", "oth*"], ["other"]),
        (["-t", "none"], []),
    ):
        ran = mqctl("group", "lag", "--all", "--total", *arguments, "-o", "json")
        assert [row["group"] for row in ran.data] == groups, arguments
        assert ran.err == ("" if groups else "no group reads matching topics\n")
    ran = mqctl("group", "lag", "g", "-t", "oth*")
    assert "'g' has no committed offsets for such topics" in ran.err, "a named group is reported"


def test_seek_shows_its_plan_and_resets_offsets_only_with_execute(
    mqctl: Mqctl, filled: Loopback, tmp_path: Path
) -> None:
    saved = str(tmp_path / "before.csv")
    ran = mqctl("group", "seek", "g", "--to", "beginning", "--save", saved, "-o", "json")
    assert ran.data == [
        {"topic": "a", "partition": 0, "before": 5, "after": 0, "note": None},
        {"topic": "a", "partition": 1, "before": 20, "after": 0, "note": None},
    ]
    assert "re-run with --execute" in ran.err and offsets(filled) == {0: 5, 1: 20}
    assert mqctl("group", "seek", "g", "a:1", "--to", "@15000", "--execute").code == 0
    assert offsets(filled) == {0: 5, 1: 15}
    ran = mqctl("group", "seek", "g", "a:0", "--shift", "-9", "--execute")
    assert (
        "-4 is before the log start" in ran.out
        and "were reset" in ran.err
        and offsets(filled) == {0: 0, 1: 15}
    )
    assert mqctl("group", "seek", "g", "--to", "-3", "--execute").code == 0
    assert offsets(filled) == {0: 17, 1: 17}
    assert mqctl("group", "seek", "g", "--file", saved, "--execute").code == 0
    assert offsets(filled) == {0: 5, 1: 20}
    ran = mqctl("group", "seek", "g", "--to", "end", "--save", saved)
    assert ran.code == 1 and "cannot write" in ran.err


def test_a_rejected_seek_does_not_report_success(mqctl: Mqctl, filled: Loopback) -> None:
    refused = {
        "topics": [
            {
                "name": "a",
                "partitions": [{"partition_index": 0, "error_code": 25}, {"partition_index": 1}],
            }
        ]
    }
    filled.inside(lambda: filled.cluster.one.script(8, refused))
    ran = mqctl("group", "seek", "g", "--to", "end", "--execute")
    assert ran.code == 3 and "a-0" in ran.err and "were reset" not in ran.err


def test_seek_creates_a_group_that_does_not_exist(mqctl: Mqctl, filled: Loopback) -> None:
    ran = mqctl("group", "seek", "fresh", "--to", "end")
    assert ran.code == 1 and "'fresh' does not exist" in ran.err
    assert mqctl("group", "seek", "fresh", "a", "--to", "end", "--execute").code == 0
    assert filled.inside(lambda: filled.cluster.groups["fresh"].offsets) == {
        A0: (20, ""),
        A1: (20, ""),
    }


def test_seek_reports_errors(mqctl: Mqctl, filled: Loopback, tmp_path: Path) -> None:
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


def test_groups_and_offsets_are_deleted_after_a_confirmation(
    mqctl: Mqctl, filled: Loopback
) -> None:
    ran = mqctl("group", "delete-offsets", "g", "a:1")
    assert ran.code == 2 and "has committed for a:1" in ran.err
    assert mqctl("group", "delete-offsets", "g", "a:1", "--yes", "-o", "json").data == [
        {"topic": "a", "partition": 1, "deleted": True}
    ]
    assert offsets(filled) == {0: 5}
    assert mqctl("group", "delete-offsets", "g", "a:1", "-y").code == 1
    ran = mqctl("group", "delete", "g", "none", "-y", "-o", "json")
    assert ran.code == 3 and ran.data == [
        {"group": "g", "deleted": True},
        {"group": "none", "deleted": False},
    ]
    assert mqctl("group", "delete", "none", "-y", "--if-exists").code == 0


def test_groups_are_deleted_by_pattern_after_they_were_shown(
    mqctl: Mqctl, filled: Loopback
) -> None:
    def make() -> None:
        for number in range(60):
            filled.cluster.one._group(f"many-{number:02}").offsets[A0] = 1, ""

    def left() -> list[str]:
        return filled.inside(lambda: sorted(filled.cluster.groups))

    filled.inside(make)
    with (
        connect(filled.address) as client,
        client.group_consumer("many-07", ["a"], group_protocol="classic") as consumer,
    ):
        assert consumer.next(timeout_s=10) is not None
        assert len(mqctl("group", "describe", "many-0*", "g", "-o", "json").data) == 11
        ran = mqctl("group", "delete", "many-*")
        assert (
            ran.code == 2
            and "deletes 59 group(s)" in ran.err
            and "many-00, many-01" in ran.err
            and "and 9 more" in ran.err
        )
        assert "It keeps 1 group(s) with members: many-07" in ran.err and len(left()) == 61
        ran = mqctl("group", "delete", "many-*", "-y", "-o", "json")
        assert (
            ran.code == 3
            and "many-07: the group is not empty" in ran.err
            and left() == ["g", "many-07"]
        )
        assert [row["group"] for row in ran.data if not row["deleted"]] == ["many-07"]
        assert mqctl("group", "delete", "many-0?", "-y").code == 1
    for arguments in (["delete", "none*", "-y"], ["describe", "none*"]):
        ran = mqctl("group", *arguments)
        assert ran.code == 1 and "error: no group matches 'none*'" in ran.err, arguments
    for command in (["describe"], ["delete", "-y"]):
        ran = mqctl("group", command[0], *command[1:], "g", "none*", "-o", "json")
        assert ran.code == 3 and "error: no group matches 'none*'\n  list the" in ran.err, command
        assert [row["group"] for row in ran.data] == ["g"]
    assert mqctl("group", "delete", "none*", "-y", "--if-exists").code == 0


def test_a_rebalancing_group_shows_awaited_members_and_continues_without_them(
    mqctl: Mqctl, filled: Loopback
) -> None:
    with (
        connect(filled.address) as client,
        client.group_consumer("g", ["a"], group_protocol="classic", instance_id="one") as one,
    ):
        assert one.next(timeout_s=10) is not None
        stable = mqctl("group", "describe", "g")
        assert "AWAITED" not in stable.out and "rebalancing" not in stable.out and not stable.err
        (member,) = (
            row["member"]
            for row in mqctl("group", "describe", "g", "-o", "json").data[0]["members"]
        )

        def member_delays_it() -> None:
            group = filled.cluster.groups["g"]
            group.members["gone"] = group.members[member]
            group.state, group.joined = "PreparingRebalance", {member}

        filled.inside(member_delays_it)
        (described,) = mqctl("group", "describe", "g", "-o", "json").data
        assert (
            described["rebalancing_since"] == "1970-01-01T00:00:05.000Z"
            and described["rebalancing_for"]
        )
        assert {row["member"]: row["awaited"] for row in described["members"]} == {
            member: False,
            "gone": True,
        }
        assert "AWAITED" in mqctl("group", "describe", "g").out
        filled.inside(lambda: setattr(filled.cluster, "tells_of_rebalances", False))
        ran = mqctl("group", "describe", "g")
        assert (
            ran.code == 0
            and "AWAITED" not in ran.out
            and f"the log of its coordinator, {filled.address}" in ran.err
        )
        assert mqctl("group", "remove-member", "g").code == 2
        ran = mqctl("group", "remove-member", "g", "--member", "gone")
        assert (
            ran.code == 2
            and "gone: client 'mqd' at /127.0.0.1, which has no partitions" in ran.err
            and "--yes" in ran.err
        )
        assert "gone" in filled.inside(lambda: filled.cluster.groups["g"].members)
        ran = mqctl(
            "group",
            "remove-member",
            "g",
            "--member",
            "gone",
            "--member",
            "none",
            "-y",
            "-o",
            "json",
        )
        assert ran.code == 3 and ran.data == [
            {"member": "gone", "removed": True},
            {"member": "none", "removed": False},
        ]
        assert (
            "'none' of group 'g': it is not in the group" in ran.err
            and "mqctl group describe g" in ran.err
        )
        assert mqctl("group", "remove-member", "g", "--instance", "one", "-y").code == 0
        assert filled.inside(lambda: filled.cluster.groups["g"].members) == {}
    ran = mqctl("group", "remove-member", "none", "--instance", "one", "-y")
    assert ran.code == 1 and "'none' does not exist." in ran.err


def test_group_config(mqctl: Mqctl, served: Loopback) -> None:
    key = "consumer.session.timeout.ms"
    rows = mqctl("group", "config", "get", "g", "-o", "json").data
    assert {row["name"]: row["source"] for row in rows} == {
        key: "default",
        "consumer.heartbeat.interval.ms": "default",
    }
    assert "dry run" in mqctl("group", "config", "set", "g", f"{key}=9", "--dry-run").err
    assert mqctl("group", "config", "get", "g", "--changed", "-o", "json").data == []
    ran = mqctl("group", "config", "set", "g", f"{key}=60000", "-o", "json")
    assert ran.data == [
        {"name": key, "value": "60000", "source": "dynamic_group", "has_effect": True}
    ]
    assert [
        row["name"] for row in mqctl("group", "config", "get", "g", "--changed", "-o", "json").data
    ] == [key]
    assert mqctl("group", "config", "get", "other", "--changed", "-o", "json").data == []
    ran = mqctl("group", "config", "unset", "g", key, "-o", "json")
    assert ran.data == [{"name": key, "value": "45000", "source": "default", "has_effect": True}]
    ran = mqctl("group", "config", "get", "g", key, "typo", "--explain")
    assert ran.code == 3 and f"about {key}" in ran.out
    assert "error: Group config 'typo' does not exist.\n" in ran.err
    ran = mqctl("group", "config", "set", "g", f"{key}=bad")
    assert (
        ran.code == 1
        and ran.err.startswith("error: group 'g': a bad value\n")
        and "mqctl group config get" in ran.err
    )
    assert mqctl("group", "config", "set", "g", "novalue").code == 2


def test_transactions(mqctl: Mqctl, filled: Loopback) -> None:
    assert mqctl("txn", "list").err == "no transactional ids\n"
    with connect(filled.address) as client, client.transactional_producer("t; rm") as producer:
        with producer.transaction():
            producer.send("a", b"x", partition=0)
        producer.begin()
        producer.send("a", b"x", partition=0)
        (row,) = mqctl("txn", "list", "--state", "ongoing", "-o", "json").data
        assert row["transactional_id"] == "t; rm" and row["state"] == "Ongoing"
        assert mqctl("txn", "list", "--state", "Empty").err == "no transactional id matches\n"
        (described,) = mqctl("txn", "describe", "t; rm", "-o", "json").data
        assert (
            described["partitions"] == ["a:0"]
            and described["started"] == "1970-01-01T00:00:01.000Z"
        )
        assert "open_for" in mqctl("txn", "describe", "t; rm").out
        assert mqctl("txn", "find-hanging").err == "no hanging transactions\n"
        ran = mqctl("txn", "find-hanging", "--topic", "none")
        assert ran.code == 1 and "no partition matches" in ran.err
        ran = mqctl("txn", "abort", "a:0", "--start-offset", "22", "--yes")
        assert (
            ran.code == 1 and "is not hanging" in ran.err and "mqctl txn fence 't; rm'" in ran.err
        )
        assert mqctl("txn", "abort", "a:0", "--start-offset", "22", "--force").code == 2, (
            "it has a coordinator, and this command sends a request first"
        )
        filled.inside(lambda: filled.cluster.transactions["t; rm"].partitions.clear())
        ran = mqctl("txn", "find-hanging", "--topic", "a*", "--older-than", "90s", "-o", "json")
        assert [
            (row["partition"], row["start_offset"], row["transactional_id"]) for row in ran.data
        ] == [(0, 22, "t; rm")]
        assert ran.err == "mqctl txn abort a:0 --start-offset 22\n"
        ran = mqctl("txn", "abort", "a:0", "--start-offset", "22")
        assert ran.code == 2 and "starts at offset 22 of a:0" in ran.err
        assert mqctl("txn", "abort", "a:0", "--start-offset", "22", "-y").code == 0
        assert filled.inside(lambda: filled.cluster.partition(A0).open) == {}
        assert (
            "no open transaction at offset 22"
            in mqctl("txn", "abort", "a:0", "--start-offset", "22", "-y").err
        )
        assert mqctl("txn", "fence", "t; rm").code == 2
        ran = mqctl("txn", "fence", "t; rm", "typo", "-y", "-o", "json")
        assert ran.code == 3 and "'typo' does not exist." in ran.err
        assert list(filled.inside(lambda: filled.cluster.transactions)) == ["t; rm"], (
            "fencing would have created it"
        )
        assert ran.data[0]["producer_epoch"] == producer._wrapped.producer[1] + 1  # type: ignore[attr-defined]  # the sync client's inner producer
    for arguments in (
        ["abort", "a:0"],
        ["abort", "a", "--producer-id", "1"],
        ["find-hanging", "--older-than", "long"],
        ["list", "--state", "Merry"],
    ):
        assert mqctl("txn", *arguments).code == 2, arguments
    assert "'none' does not exist." in mqctl("txn", "describe", "none").err


def test_find_hanging_names_the_nodes_that_it_could_not_reach(
    mqctl: Mqctl, filled: Loopback
) -> None:
    def leader(tp: TopicPartition, node: int) -> None:
        filled.inside(lambda: setattr(filled.cluster.partition(tp), "leader", node))

    leader(A1, -1)
    ran = mqctl("txn", "find-hanging", "-o", "json")
    assert (
        ran.code == 3
        and ran.data == []
        and "no hanging transactions in 1 of 2 partitions" in ran.err
    )
    assert "a-1: no leader" in ran.err and "mqctl partition list --leaderless" in ran.err
    leader(A0, -1)
    ran = mqctl("txn", "find-hanging")
    assert ran.code == 1 and "a-0, a-1: no leader" in ran.err
    for tp in (A0, A1):
        leader(tp, 1)
    filled.inside(
        lambda: filled.cluster.one.script(
            61, {"topics": [{"name": "a", "partitions": [{"partition_index": 0}, REFUSED]}]}
        )
    )
    ran = mqctl("txn", "find-hanging", "--topic", "a")
    assert ran.code == 3 and "a-1" in ran.err


def test_a_transaction_of_an_unreachable_coordinator_is_not_hanging(
    mqctl: Mqctl, filled: Loopback
) -> None:
    with connect(filled.address) as client, client.transactional_producer("t") as producer:
        producer.begin()
        producer.send("a", b"x", partition=0)
        known = filled.inside(lambda: filled.cluster.transactions.pop("t"))
        state = filled.inside(lambda: filled.cluster.add_topic("__transaction_state", 2))
        abort = ["txn", "abort", "a:0", "--start-offset", "20", "-y"]
        filled.inside(lambda: setattr(state[1], "leader", -1))
        ran = mqctl("txn", "find-hanging", "--topic", "a", "-o", "json")
        assert (
            ran.code == 3
            and ran.data == []
            and "no hanging transactions in 1 of 2 partitions" in ran.err
        )
        assert "1 partition(s) of __transaction_state have no leader" in ran.err
        assert mqctl(*abort).code == 1, "it may be committed elsewhere"
        assert filled.inside(lambda: filled.cluster.partition(A0).open)
        filled.inside(lambda: setattr(state[1], "leader", 1))
        assert [
            row["partition"]
            for row in mqctl("txn", "find-hanging", "--topic", "a", "-o", "json").data
        ] == [0]
        filled.inside(lambda: filled.cluster.transactions.update(t=known))
        filled.inside(lambda: filled.cluster.one.script(66, {"error_code": 31}))
        ran = mqctl("txn", "find-hanging", "--topic", "a")
        assert ran.code == 3 and "transactions of broker 1" in ran.err


@pytest.mark.parametrize("how", ["refuses", "silent"])
def test_lists_contain_the_responses_of_live_nodes(
    mqctl: Mqctl, filled: Loopback, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list names the unreachable node, at once if it refuses, and the exit code marks it as
    incomplete.
    """
    monkeypatch.setattr("mqctl.app.CONNECT_TIMEOUT_S", 0.5)  # also for brokers that respond
    with socket.socket() as frozen:
        if how == "silent":
            frozen.bind(("127.0.0.1", 0))
            frozen.listen()
        port = frozen.getsockname()[1] if how == "silent" else free_ports(1)[0]
        filled.inside(lambda: filled.cluster.addresses.update({2: ("127.0.0.1", port)}))

        def result_of(*arguments: str) -> Ran:
            began = time.monotonic()
            ran = mqctl(*arguments, "-o", "json", "--timeout", "60")
            assert ran.code == 3 and f"127.0.0.1:{port}" in ran.err and "broker 2" in ran.err, (
                arguments,
                ran,
            )
            assert time.monotonic() - began < 30, "it does not wait for the timeout"
            assert "--bootstrap" not in ran.err and "`mqctl cluster health`" in ran.err
            return ran

        assert [row["group"] for row in result_of("group", "list").data] == ["g"]
        assert "no group" not in result_of("group", "list", "--state", "Dead").err, (
            "the state is unknown"
        )
        assert [row["group"] for row in result_of("group", "lag", "--all").data] == ["g", "g"]
        assert "no group" not in result_of("group", "lag", "--all", "-t", "none").err
        assert [row["group"] for row in result_of("group", "describe", "g*").data] == ["g"]
        assert result_of("group", "describe", "none*").data == []
        assert "no transactional ids" not in result_of("txn", "list").err
        ran = mqctl("group", "delete", "g*")
        assert ran.code == 2 and "It skips the groups of unreachable brokers: broker 2" in ran.err
        assert result_of("group", "delete", "g*", "-y").data == [{"group": "g", "deleted": True}]


def test_seek_plans_the_partitions_that_have_leaders(
    mqctl: Mqctl, filled: Loopback, tmp_path: Path
) -> None:
    filled.inside(lambda: setattr(filled.cluster.partition(A1), "leader", -1))
    saved = tmp_path / "before.csv"
    ran = mqctl(
        "group",
        "seek",
        "g",
        "--to",
        "beginning",
        "--save",
        str(saved),
        "-o",
        "json",
        "--timeout",
        "60",
    )
    assert ran.code == 3 and [(row["partition"], row["after"]) for row in ran.data] == [(0, 0)]
    assert (
        "a-1: it has no leader" in ran.err
        and "restart the broker" in ran.err
        and "re-run with --execute" in ran.err
    )
    assert saved.read_text() == "a,0,5\na,1,20\n", "a saved offset needs no leader"
    assert mqctl("group", "seek", "g", "--to", "beginning", "--execute").code == 3
    assert offsets(filled) == {0: 0, 1: 20}
    ran = mqctl("group", "seek", "g", "a:1", "--to", "@5", "--execute")
    assert ran.code == 1 and "a-1: it has no leader" in ran.err and "were reset" not in ran.err
    assert mqctl("group", "seek", "g", "--file", str(saved), "--execute").code == 3
    assert offsets(filled) == {0: 5, 1: 20}


def test_ids_without_a_transaction_are_not_open_for_long(mqctl: Mqctl, filled: Loopback) -> None:
    """Coordinators return them in a list that is filtered by age."""
    with (
        connect(filled.address) as client,
        client.transactional_producer("idle"),
        client.transactional_producer("busy") as busy,
    ):
        busy.begin()
        busy.send("a", b"x", partition=0)
        assert len(mqctl("txn", "list", "-o", "json").data) == 2
        assert [
            row["transactional_id"]
            for row in mqctl("txn", "list", "--longer-than", "1s", "-o", "json").data
        ] == ["busy"]
