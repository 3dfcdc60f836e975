"""`mqctl cluster`, `topic`, `produce` and `consume`, with a fake broker on loopback."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import yaml

from mqd.types import TopicPartition
from tests.client.fake import CREATE_TOPICS, METADATA, PRODUCE, Hang
from tests.client.loopback import Loopback
from tests.ran import Ran


def test_cluster_info(mqctl: Callable[..., Ran], served: Loopback) -> None:
    served.inside(lambda: served.cluster.add_topic("a", 2))
    ran = mqctl("cluster", "info", "-o", "json")
    assert ran.data["topics"] == 1
    assert ran.code == 0 and ran.err == ""
    assert (
        ran.data["cluster_id"] == "fake"
        and ran.data["partitions"] == 2
        and ran.data["leaderless_partitions"] == 0
    )
    assert ran.data["brokers"][0] | {"port": 0} == {
        "broker": 1,
        "host": "127.0.0.1",
        "port": 0,
        "rack": None,
        "state": "alive",
        "leads": 2,
        "replicas": 2,
    }
    table = mqctl("cluster", "info").out
    assert "cluster id" in table and "\x1b" not in table and "BROKER  HOST" in table


def test_a_mistyped_command_gets_a_suggestion(mqctl: Callable[..., Ran]) -> None:
    ran = mqctl("topc", "list")
    assert ran.code == 2 and "No such command 'topc'. Did you mean 'topic'?" in ran.err
    ran = mqctl("group", "describ", "billing")
    assert ran.code == 2 and "No such command 'describ'. Did you mean 'describe'?" in ran.err
    ran = mqctl("xyz")
    assert ran.code == 2 and "No such command 'xyz'." in ran.err and "Did you" not in ran.err


def test_a_mistyped_option_gets_a_suggestion_only_if_one_is_similar(
    mqctl: Callable[..., Ran],
) -> None:
    ran = mqctl("consume", "orders", "--tail", "g")
    assert ran.code == 2 and "No such option '--tail'.\n" in ran.err, ran.err
    ran = mqctl("group", "seek", "g", "--topic", "t")
    assert ran.code == 2 and "No such option '--topic'.\n" in ran.err, ran.err
    ran = mqctl("topic", "list", "--bootsrap", "k:9092")
    assert ran.code == 2
    assert "No such option '--bootsrap'. Did you mean '--bootstrap'?\n" in ran.err, ran.err


def test_ls_is_list(mqctl: Callable[..., Ran], served: Loopback) -> None:
    served.inside(lambda: served.cluster.add_topic("a", 2))
    assert mqctl("topic", "ls").out == mqctl("topic", "list").out != ""
    ran = mqctl("produce", "ls", "--help")
    assert ran.code == 0, "produce takes a topic: no alias"


def test_topic_life(mqctl: Callable[..., Ran], served: Loopback) -> None:
    assert mqctl("topic", "list").err == "no topics\n"
    ran = mqctl("topic", "create", "a", "b", "-p", "3", "-c", "x=1", "-o", "yaml")
    assert ran.code == 0 and [row["partitions"] for row in yaml.safe_load(ran.out)] == [3, 3]
    ran = mqctl("topic", "create", "b", "c")
    assert (
        ran.code == 3
        and "error: topic 'b': topic already exists" in ran.err
        and ran.out.splitlines()[1].startswith("c ")
    )
    assert mqctl("topic", "create", "b").code == 1
    assert mqctl("topic", "create", "b", "--if-not-exists").code == 0
    assert [
        json.loads(line)["topic"] for line in mqctl("topic", "list", "-o", "jsonl").out.splitlines()
    ] == ["a", "b", "c"]
    assert [row["topic"] for row in mqctl("-o", "json", "topic", "list", "[ab]").data] == ["a", "b"]
    assert mqctl("topic", "list", "x*").err == "no topic matches 'x*'\n"
    (described,) = mqctl("topic", "describe", "a", "-o", "json").data
    assert len(described["partitions"]) == 3 and described["partitions"][0]["end"] == 0
    assert "PARTITION  LEADER  EPOCH" in mqctl("topic", "describe", "a", "b").out
    ran = mqctl("topic", "describe", "a", "nope")
    assert ran.code == 3 and "'nope' does not exist." in ran.err
    ran = mqctl("topic", "add-partitions", "a", "--by", "2", "-o", "json")
    assert (
        ran.data == [{"topic": "a", "before": 3, "after": 5}]
        and "now map to other partitions" in ran.err
    )
    assert mqctl("topic", "add-partitions", "a", "--to", "5").code == 1
    assert mqctl("topic", "add-partitions", "a").code == 2
    assert mqctl("topic", "add-partitions", "a", "--to", "9", "--dry-run").code == 0
    ran = mqctl("topic", "delete", "a", "b")
    assert ran.code == 2 and "permanently deletes 2 topic(s)" in ran.err and "--yes" in ran.err
    assert len(served.cluster.topics["a"]) == 5
    ran = mqctl("topic", "delete", "a", "nope", "--yes", "-o", "json")
    assert ran.code == 3 and ran.data == [
        {"topic": "a", "deleted": True},
        {"topic": "nope", "deleted": False},
    ]
    ran = mqctl("topic", "delete", "nope", "-y", "--if-exists", "-o", "json")
    assert ran.code == 0 and ran.data == [{"topic": "nope", "deleted": False}]


def test_topics_are_deleted_by_pattern(mqctl: Callable[..., Ran], served: Loopback) -> None:
    for name in ("test-1", "test-2", "other", "__consumer_offsets"):
        served.inside(partial(served.cluster.add_topic, name))
    ran = mqctl("topic", "delete", "test-*", "other")
    assert (
        ran.code == 2
        and "This permanently deletes 3 topic(s) and all their records: other, test-1, test-2"
        in ran.err
    )
    assert len(served.cluster.topics) == 4
    ran = mqctl("topic", "delete", "test-?", "--yes", "-o", "json")
    assert ran.code == 0 and ran.data == [
        {"topic": "test-1", "deleted": True},
        {"topic": "test-2", "deleted": True},
    ]
    ran = mqctl("topic", "delete", "test-*", "--yes")
    assert ran.code == 1 and "error: no topic matches 'test-*'" in ran.err and ran.out == ""
    ran = mqctl("topic", "delete", "test-*", "--yes", "--if-exists", "-o", "json")
    assert ran.code == 0 and ran.data == [] and ran.err == "no topic matches 'test-*'\n"
    ran = mqctl("topic", "delete", "other", "test-*", "--yes", "-o", "json")
    assert ran.code == 3 and ran.data == [{"topic": "other", "deleted": True}]
    assert ran.err.startswith("error: no topic matches 'test-*'\n  list the topics with")


def test_topic_trim(mqctl: Callable[..., Ran], served: Loopback, tmp_path: Path) -> None:
    served.inside(lambda: served.cluster.add_topic("a", 2))
    lines = tmp_path / "lines"
    for index in range(10):
        lines.write_text("x")
        assert mqctl("produce", "a", "-p", "0", "-f", str(lines), "-t", str(1000 + index)).code == 0
    for arguments in (
        [],
        ["--keep", "1", "--before-offset", "2"],
        ["--before-time", "yesterday"],
        ["--keep", "-1"],
    ):
        assert mqctl("topic", "trim", "a", *arguments).code == 2, arguments
    assert "has no partition 7" in mqctl("topic", "trim", "a:7", "--keep", "0").err
    assert (
        "offset 11 is beyond the log end of a-0, which is 10"
        in mqctl("topic", "trim", "a:0", "--before-offset", "11").err
    )
    assert "'nope' does not exist." in mqctl("topic", "trim", "nope", "--keep", "0").err

    ran = mqctl("topic", "trim", "a", "--before-offset", "0", "--dry-run", "-o", "json")
    assert [(row["partition"], row["offsets"]) for row in ran.data] == [(0, 0), (1, 0)]
    row = {"topic": "a", "partition": 0, "before": 0, "after": 3, "end": 10, "offsets": 3}
    ran = mqctl("topic", "trim", "a:0", "--before-time", "1003", "--dry-run", "-o", "json")
    assert (ran.code, ran.data) == (0, [row]) and "nothing was deleted" in ran.err
    ran = mqctl("topic", "trim", "a:0", "--before-time", "1003")
    assert ran.code == 2 and "a-0: 3 offsets, from 0 up to 3; 7 remain" in ran.err, (
        "it asks for confirmation"
    )
    assert served.cluster.topics["a"][0].start == 0
    ran = mqctl("topic", "trim", "a:0", "--before-time", "@1003", "--yes", "-o", "json")
    assert (ran.code, ran.data) == (0, [row])
    ran = mqctl("topic", "trim", "a:0", "--keep", "4", "--yes", "-o", "json")
    assert ran.data == [{**row, "before": 3, "after": 6}]
    ran = mqctl("topic", "trim", "a:0", "--keep", "8", "--yes")
    assert ran.code == 0 and "already start there" in ran.err, "a log start never decreases"
    ran = mqctl("topic", "trim", "a:0", "--before-time", "9999", "--yes", "-o", "json")
    assert ran.data == [{**row, "before": 6, "after": 10, "offsets": 4}], "all records are older"
    assert "beginning" in mqctl("topic", "describe", "a", "-o", "json").out


def test_json_is_written_also_for_errors(mqctl: Callable[..., Ran], served: Loopback) -> None:
    assert mqctl("topic", "list", "-o", "json").data == []
    assert mqctl("topic", "list", "-o", "jsonl").out == ""
    ran = mqctl("topic", "delete", "x*", "--yes", "-o", "json")
    error = {
        "message": "no topic matches 'x*'",
        "remedy": "list the topics with `mqctl topic list`",
    }
    assert (ran.code, ran.data) == (1, {"errors": [error], "exit_code": 1}) and ran.err.startswith(
        "error: no topic matches"
    )
    assert json.loads(mqctl("topic", "delete", "x*", "-y", "-ojsonl").out) == {
        "errors": [error],
        "exit_code": 1,
    }
    assert yaml.safe_load(mqctl("-o", "yaml", "topic", "delete", "x*", "-y").out) == {
        "errors": [error],
        "exit_code": 1,
    }
    ran = mqctl("topic", "describe", "nope", "-o", "json")
    assert ran.code == 1 and ran.data["errors"][0]["message"] == "Topic 'nope' does not exist."
    served.inside(lambda: served.cluster.add_topic("a"))
    for arguments in (["topic", "create", "a"], ["group", "describe", "nope"]):
        ran = mqctl(*arguments, "-o", "json")
        assert ran.code == 1 and len(ran.data["errors"]) == 1, arguments
    for arguments in (["topic", "frob"], ["topic", "list", "--frob"], ["topic", "trim", "x"]):
        ran = mqctl(*arguments, "--output=json")
        assert (ran.code, ran.data["exit_code"], len(ran.data["errors"])) == (2, 2, 1), arguments
    assert mqctl("topic", "list", "-b", "127.0.0.1:1", "-o", "json").data["exit_code"] == 1
    assert mqctl("consume", "nope", "-e", "-o", "json").data["exit_code"] == 1
    assert mqctl("topic", "delete", "x*", "-y").out == "", "a table has no place for errors"


def test_topic_config(mqctl: Callable[..., Ran], served: Loopback) -> None:
    served.inside(lambda: served.cluster.add_topic("a"))
    ran = mqctl("topic", "config", "set", "a", "retention.ms=5", "-o", "json")
    assert ran.data == [
        {"name": "retention.ms", "value": "5", "source": "dynamic_topic", "has_effect": True}
    ]
    assert mqctl("topic", "config", "append", "a", "cleanup.policy=delete,compact").code == 0
    assert mqctl("topic", "config", "subtract", "a", "cleanup.policy=delete").code == 0
    rows = mqctl("topic", "config", "get", "a", "--changed", "-o", "json").data
    assert {row["name"]: row["value"] for row in rows} == {
        "retention.ms": "5",
        "cleanup.policy": "compact",
    }
    assert mqctl("topic", "config", "unset", "a", "retention.ms").code == 0
    ran = mqctl("topic", "config", "get", "a", "retention.ms", "typo", "--explain")
    assert (
        ran.code == 3
        and "604800000" in ran.out
        and "about retention.ms" in ran.out
        and ran.err
        == "error: Topic config 'typo' does not exist.\n"
        "  list the keys with `mqctl topic config get a`\n"
    )
    ran = mqctl("topic", "config", "get", "a", "typo", "-o", "json")
    assert ran.code == 1
    assert ran.data["errors"][0]["message"] == "Topic config 'typo' does not exist."
    ran = mqctl("topic", "config", "set", "a", "x=bad")
    assert ran.code == 1 and ran.err.startswith("error: topic 'a': a bad value\n  list its keys")
    assert mqctl("topic", "config", "set", "a", "novalue").code == 2
    assert "dry run" in mqctl("topic", "config", "set", "a", "retention.ms=9", "--dry-run").err
    assert mqctl("topic", "config", "get", "nope").code == 1


def test_setting_a_key_without_effect_prints_a_warning(
    mqctl: Callable[..., Ran], served: Loopback
) -> None:
    warning = "warning: preallocate has no effect: no use\n"
    ran = mqctl(
        "topic", "create", "a", "-c", "preallocate=true", "-c", "retention.ms=5", "-o", "json"
    )
    assert ran.code == 0 and ran.err == warning and [row["topic"] for row in ran.data] == ["a"]
    assert mqctl("topic", "create", "b", "-c", "retention.ms=5").err == ""
    ran = mqctl("topic", "config", "set", "b", "preallocate=true", "retention.ms=6")
    assert ran.code == 0 and ran.err == warning
    assert mqctl("topic", "config", "set", "b", "retention.ms=7").err == ""
    assert mqctl("topic", "config", "unset", "b", "preallocate").err == ""
    ran = mqctl("topic", "config", "set", "b", "compression.zstd.level=22")
    assert ran.code == 0 and ran.err == "warning: compression.zstd.level=22 acts as 9\n"
    assert mqctl("topic", "config", "set", "b", "compression.zstd.level=9").err == ""


def test_values_without_effect_are_marked(mqctl: Callable[..., Ran], served: Loopback) -> None:
    served.inside(lambda: served.cluster.add_topic("a"))
    pairs = ("preallocate=true", "compression.zstd.level=22", "retention.ms=5")
    assert mqctl("topic", "config", "set", "a", *pairs).code == 0
    for command in (["topic", "config", "get", "a"], ["topic", "describe", "a"]):
        out = mqctl(*command).out
        assert "true (no effect)" in out and "22 (acts as 9)" in out and "5 (" not in out, command
    (described,) = mqctl("topic", "describe", "a", "-o", "json").data
    assert described["config"]["preallocate"] == "true"
    assert described["without_effect"] == ["preallocate"]
    rows = mqctl("topic", "config", "get", "a", "-o", "json").data
    assert [row["name"] for row in rows if not row["has_effect"]] == ["preallocate"]
    served.cluster.configs[4, "1"] = {"background.threads": "4"}
    assert "4 (no effect)" in mqctl("broker", "describe", "1").out
    described = mqctl("broker", "describe", "1", "-o", "json").data
    assert described["config"] == {"background.threads": "4"}
    assert described["without_effect"] == ["background.threads"]


def test_produce_and_consume(mqctl: Callable[..., Ran], served: Loopback, tmp_path: Path) -> None:
    served.inside(lambda: served.cluster.add_topic("a"))
    lines = tmp_path / "lines"
    lines.write_bytes(b"k1:v1\r\nk2:v:2\nalone\nk3:\n\xff:\xfe")
    ran = mqctl(
        "produce",
        "a",
        "-f",
        str(lines),
        "-k",
        ":",
        "-H",
        "h=x",
        "-t",
        "1000",
        "--null",
        "-z",
        "gzip",
        "-o",
        "json",
    )
    assert ran.code == 0, ran.err
    assert ran.data == [
        {"topic": "a", "partition": 0, "records": 5, "first_offset": 0, "last_offset": 4}
    ]
    ran = mqctl("consume", "a", "-e", "-f", r"%o %k=%v{hex} %h %T %V\n", "-n", "4")
    assert (
        ran.out == "0 k1=7631 h=x 1000 2\n1 k2=763a32 h=x 1000 3\n2 =616c6f6e65 h=x 1000 5\n3 k3= "
        "h=x 1000 -1\n"
    )
    copy = mqctl("consume", "a", "-e", "-o", "jsonl").out
    lines.write_text(copy)
    assert mqctl("produce", "a", "--input", "jsonl", "-f", str(lines)).code == 0
    both = mqctl("consume", "a", "-e", "-o", "json").data
    assert [row | {"offset": 0} for row in both[:5]] == [row | {"offset": 0} for row in both[5:]]
    assert both[4]["key_base64"] == "/w==" and both[3]["value"] is None
    assert [
        row["offset"]
        for row in yaml.safe_load(mqctl("consume", "a", "--from", "-2", "-e", "-o", "yaml").out)
    ] == [8, 9]
    assert mqctl("consume", "a", "--from", "8", "--to", "9", "-f", "%o").out == "8"
    assert mqctl("consume", "a", "--from", "@1001", "-e").out == ""
    assert mqctl("consume", "a", "--from", "end", "-e", "-o", "json").data == []
    assert "PART        OFFSET  TIMESTAMP" in mqctl("consume", "a", "-e", "-o", "table").out
    whole = mqctl("produce", "a", "--input", "whole", "--key", "K", "--acks", "1", "-f", str(lines))
    assert (
        whole.code == 0
        and mqctl("consume", "a", "--from", "-1", "-n", "1", "-f", "%k%v").out == "K" + copy
    )


def test_consume_as_a_member_of_a_share_group(
    mqctl: Callable[..., Ran], served: Loopback, tmp_path: Path
) -> None:
    a = TopicPartition("a", 0)
    served.inside(lambda: served.cluster.add_topic("a"))
    (tmp_path / "lines").write_text("one\ntwo\nthree\nfour\n")
    assert mqctl("produce", "a", "-f", str(tmp_path / "lines")).code == 0
    share = ("consume", "a", "--share-group", "g")
    assert mqctl(*share, "-n", "1").out == "one\n"
    assert mqctl(*share, "-n", "1", "--release").out == "two\n"
    assert mqctl(*share, "-n", "1", "--reject", "-f", "%o").out == "1"
    ran = mqctl(*share, "--idle", "1", "-o", "jsonl")
    assert [json.loads(line)["value"] for line in ran.out.splitlines()] == ["three", "four"]
    assert ran.code == 0, ran.err
    group = served.cluster.shares["g"]
    assert group.done[a] == {0: 1, 1: 3, 2: 1, 3: 1} and group.counts[a][1] == 2
    assert not group.members
    ran = mqctl("consume", "nosuch", "--share-group", "g", "-o", "table", "--timeout", "5")
    assert (ran.code, ran.out) == (1, "") and "Topic 'nosuch' does not exist." in ran.err
    for wrong, sentence in (
        ((*share, "--from", "end"), "--from is not possible with --share-group"),
        (("consume", "a", "--reject"), "need --share-group"),
        ((*share, "--accept", "--reject"), "specify one of --accept, --release and --reject"),
    ):
        ran = mqctl(*wrong)
        assert ran.code == 2 and sentence in ran.err


def test_idle_time_begins_after_the_assignment(
    mqctl: Callable[..., Ran], served: Loopback, tmp_path: Path
) -> None:
    served.inside(lambda: served.cluster.add_topic("a"))
    (tmp_path / "lines").write_text("one\n")
    assert mqctl("produce", "a", "-f", str(tmp_path / "lines")).code == 0
    loading = [{"error_code": 14, "error_message": None}] * 3
    served.inside(lambda: served.cluster.one.script(76, *loading))
    assert mqctl("consume", "a", "--share-group", "g", "--idle", "0.1").out == "one\n"


def test_consume_read_committed_ends_at_the_last_stable_offset(
    mqctl: Callable[..., Ran], served: Loopback, tmp_path: Path
) -> None:
    """While a transaction is open; a wait for the high watermark would not end."""
    served.inside(lambda: served.cluster.add_topic("a"))
    lines = tmp_path / "lines"
    for text in ("one", "two", "three"):
        lines.write_text(text)
        assert mqctl("produce", "a", "-f", str(lines)).code == 0

    def hold_back() -> None:
        served.cluster.topics["a"][0].open[99] = 2

    served.inside(hold_back)
    assert mqctl("consume", "a", "-e", "--read-committed").out == "one\ntwo\n"
    assert mqctl("consume", "a", "--to", "end", "--from", "-1", "--read-committed").out == "two\n"
    assert mqctl("consume", "a", "-e").out == "one\ntwo\nthree\n"


def test_consume_reports_errors(mqctl: Callable[..., Ran], served: Loopback) -> None:
    served.inside(lambda: served.cluster.add_topic("a"))
    for arguments in (
        ["--from", "x"],
        ["-p", "x"],
        ["-f", "%x"],
        ["-f", "%v", "-o", "json"],
        ["--from", "@yesterday"],
        ["-n", "0"],
    ):
        ran = mqctl("consume", "a", *arguments)
        assert ran.code == 2 and "Error:" in ran.err, arguments
    assert "has no partition 3" in mqctl("consume", "a", "-p", "3").err
    assert (
        "offset 5 is beyond the log end of a-0, which is 0"
        in mqctl("consume", "a", "--from", "5", "-e").err
    )
    ran = mqctl("consume", "a", "--from", "5")
    assert ran.code == 1 and "a-0 has no offset 5: it goes from 0 to 0" in ran.err
    assert "'nope' does not exist." in mqctl("consume", "nope").err


def test_produce_reports_errors(
    mqctl: Callable[..., Ran], served: Loopback, tmp_path: Path
) -> None:
    served.inside(lambda: served.cluster.add_topic("a"))
    lines = tmp_path / "lines"
    lines.write_text('{"value": "good"}\nbad\n{"value": "good too"}\n')
    ran = mqctl("produce", "a", "--input", "jsonl", "-f", str(lines))
    assert (
        ran.code == 3
        and "error: line 2: not JSON" in ran.err
        and "1 of 3 records were not sent" in ran.err
    )
    refused = {
        "responses": [
            {
                "name": "a",
                "topic_id": served.cluster.ids["a"],
                "partition_responses": [{"index": 0, "error_code": 10}],
            }
        ]
    }
    served.inside(lambda: served.cluster.one.script(PRODUCE, refused))
    lines.write_text("one")
    ran = mqctl("produce", "a", "-f", str(lines))
    assert ran.code == 1 and "max.message.bytes" in ran.err
    assert "cannot read" in mqctl("produce", "a", "-f", str(tmp_path / "nope")).err
    assert mqctl("produce", "a", "--key", "k", "-k", ":").code == 2
    assert mqctl("produce", "a", "-k", r"\q").code == 2
    assert mqctl("produce", "nope", "-f", str(lines), "--timeout", "0.4").code == 1


def test_failures_have_exit_codes_and_remedies(mqctl: Callable[..., Ran], served: Loopback) -> None:
    ran = mqctl("topic", "list", "-b", "127.0.0.1:1")
    assert ran.code == 1 and ran.out == ""
    assert ran.err.startswith(
        "error: nothing listens at 127.0.0.1:1\n  is the broker running? Start it (for "
        "development: `mqd dev`)"
    )
    assert mqctl("topic", "list", "-b", "nonsense:port").code == 2
    served.inside(lambda: served.cluster.one.script(METADATA, Hang()))
    ran = mqctl("topic", "list", "--timeout", "0.1")
    assert ran.code == 4 and "no response from" in ran.err
    served.inside(
        lambda: served.cluster.one.script(
            CREATE_TOPICS, *[{"topics": [{"name": "a", "error_code": 41}]}] * 99
        )
    )
    assert mqctl("topic", "create", "a", "--timeout", "0.2").code == 4
    assert mqctl("topic", "frob").code == 2
    assert mqctl("frob").code == 2
    assert mqctl("topic", "list", "-o", "xml").code == 2


def test_every_command_has_help(mqctl: Callable[..., Ran]) -> None:
    import click

    from mqctl.__main__ import cli

    def walk(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield path
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                yield from walk(inner, (*path, name))

    paths = list(walk(cli, ()))
    assert ("topic", "config", "get") in paths and ("log", "dump") in paths
    for path in paths:
        ran = mqctl(*path, "--help")
        assert ran.code == 0 and ran.out.startswith("Usage: mqctl"), path


def _python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )


def test_help_imports_only_what_it_needs() -> None:
    ran = _python(
        "import sys; from mqctl.__main__ import cli; cli.main(['--help'], "
        "standalone_mode=False); print(*sys.modules, file=sys.stderr)"
    )
    loaded = set(ran.stderr.split())
    assert "Commands:" in ran.stdout and "click" in loaded
    assert not loaded & {
        "trio",
        "construct",
        "yaml",
        "mqd.client",
        "mqctl.commands.topic",
        "cramjam",
        "asyncio",
    }


def test_a_closed_standard_output_ends_the_command_silently(
    mqctl: Callable[..., Ran], served: Loopback, tmp_path: Path
) -> None:
    served.inside(lambda: served.cluster.add_topic("a"))
    lines = tmp_path / "lines"
    lines.write_text("x" * 100 + "\n")
    lines.write_text(lines.read_text() * 5000)
    assert mqctl("produce", "a", "-f", str(lines)).code == 0
    with subprocess.Popen(
        [sys.executable, "-m", "mqctl", "consume", "a", "-b", served.address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(20) == 141
