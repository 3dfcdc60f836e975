"""`mqctl find` with a fake broker on loopback, and the `log` commands with key filters."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mqctl.__main__ import cli
from mqd.log.disk.key_filter_build import filter_path
from mqd.log.log_config import LogConfig
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.key_filter import KeyFilterBuilder
from mqd.protocol.record_reader import Record
from tests.client.fake import FakeBroker
from tests.client.loopback import Loopback
from tests.log.compacting import roll, sync_and_commit
from tests.log.support import NOW, Harness
from tests.ran import Ran

FIND_RECORDS = 32_004


def found(*values: bytes | None, unindexed: int = 0) -> Callable[[FakeBroker, Any], Any]:
    """An action of the broker: the response with these records."""

    def respond(broker: FakeBroker, request: Any) -> Any:
        broker.found = request  # type: ignore[attr-defined]
        return {
            "error_message": None,
            "is_complete": True,
            "scanned_bytes": 3 << 20,
            "segments_unindexed": unindexed,
            "records": [
                {
                    "offset": at,
                    "timestamp": 1_700_000_000_000 + at,
                    "value": value,
                    "headers": [{"name": b"h", "value": b"1"}],
                }
                for at, value in enumerate(values)
            ],
        }

    return respond


def answer(served: Loopback, *actions: Callable[[FakeBroker, Any], Any]) -> None:
    served.inside(lambda: served.cluster.add_topic("orders", 2))
    served.inside(lambda: served.cluster.one.versions.update({FIND_RECORDS: (0, 0)}))
    served.inside(lambda: served.cluster.one.script(FIND_RECORDS, *actions))


def test_find(mqctl: Callable[..., Ran], served: Loopback) -> None:
    answer(served, found(b"a", None), found(b"b"))
    ran = mqctl("find", "orders", "--key", "4711", "--since", "5", "--until", "9", "-o", "json")
    assert ran.code == 0 and ran.err == ""
    assert [row["value"] for row in ran.data] == ["a", None]
    assert ran.data[0]["key"] == "4711" and ran.data[0]["headers"][0]["value"] == "1"
    request = served.cluster.one.found  # type: ignore[attr-defined]
    assert (bytes(request.key), request.since, request.until) == (b"4711", 5, 9)
    assert not request.newest_first
    ran = mqctl("find", "orders", "--key-base64", "AP8=", "--last", "-f", "%o %v")
    assert ran.out == "0 b"
    request = served.cluster.one.found  # type: ignore[attr-defined]
    assert (bytes(request.key), request.newest_first, request.max_records) == (b"\0\xff", True, 1)


def test_find_says_what_was_read_without_filters(
    mqctl: Callable[..., Ran], served: Loopback
) -> None:
    answer(served, found(unindexed=7))
    ran = mqctl("find", "orders", "--key", "k")
    assert ran.code == 0
    assert "Topic 'orders' has no record with this key in that range." in ran.err
    assert "7 segments have no key filter. Set mqd.key.index=true" in ran.err
    assert "3.0 MiB" in ran.err or "3 MiB" in ran.err


def test_find_as_of(mqctl: Callable[..., Ran], served: Loopback) -> None:
    answer(served, found(b"value"), found(None))
    ran = mqctl("find", "orders", "--key", "k", "--as-of", "1700000000000", "-f", "%v")
    assert ran.out == "value"
    request = served.cluster.one.found  # type: ignore[attr-defined]
    assert (request.until, request.newest_first) == (1_700_000_000_001, True)
    ran = mqctl("find", "orders", "--key", "k", "--as-of", "1700000000000", "-f", "%v")
    assert ran.out == "" and "The key has no value in topic 'orders'" in ran.err


def test_find_at_a_broker_that_is_not_of_mqd(mqctl: Callable[..., Ran], served: Loopback) -> None:
    served.inside(lambda: served.cluster.add_topic("orders"))
    ran = mqctl("find", "orders", "--key", "k")
    assert ran.code == 1 and "FindRecords is an API of mqd" in ran.err
    assert "read the topic with a consumer" in ran.err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["orders", "-p", "9"], "Partition orders-9 does not exist."),
        (["nosuch"], "Topic 'nosuch' does not exist."),
    ],
)
def test_find_where_nothing_is(
    mqctl: Callable[..., Ran], served: Loopback, arguments: list[str], problem: str
) -> None:
    """At once, and without a heading."""
    answer(served)
    ran = mqctl("find", *arguments, "--key", "k", "--timeout", "60")
    assert (ran.code, ran.out) == (1, "") and problem in ran.err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--key", "k", "--key-base64", "aw=="],
        ["--key-base64", "%"],
        ["--key", "k", "--as-of", "-1h", "--last"],
        ["--key", "k", "--since", "yesterday"],
        ["--key", "k", "-p", "1", "--all-partitions"],
        ["--key", "k", "-f", "%v", "-o", "json"],
    ],
)
def test_find_refuses_wrong_options(mqctl: Callable[..., Ran], arguments: list[str]) -> None:
    ran = mqctl("find", "orders", *arguments)
    assert ran.code == 2 and ran.err


# -- key filters of a stopped node


def log(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["log", *map(str, arguments)])


@pytest.fixture
async def indexed(tmp_path: Path) -> Path:
    """A partition with two full segments, each with a filter, and the active one."""
    harness = Harness(tmp_path / "logs")
    await harness.service.start()
    partition = harness.open(LogConfig(mqd_key_index=True))
    for segment in range(3):
        for at in range(20):
            rows = [Record(0, NOW + at, b"%d-%d" % (segment, at), b"v" * 40)]
            harness.write(partition, build_batch(rows))
        if segment < 2:
            roll(harness, partition)
    await sync_and_commit(harness, partition)
    while await harness.service.key_indexer.build_one():
        pass
    await harness.service.close()
    return partition.path


async def test_verify_and_dump_know_key_filters(indexed: Path) -> None:
    assert log("verify", indexed.parent).exit_code == 0
    rows = json.loads(log("dump", filter_path(indexed, 20), "-o", "json").stdout)
    assert rows[0]["first_offset"] == 20
    assert rows[0]["min_timestamp"] == NOW
    assert rows[-1]["end"] == (indexed / f"{20:020d}.log").stat().st_size


async def test_verify_finds_damaged_key_filters(indexed: Path) -> None:
    path = filter_path(indexed, 20)
    whole = path.read_bytes()
    for position, says in ((2, "head"), (100, "CRC"), (len(whole) - 1, "CRC")):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        result = log("verify", indexed.parent)
        assert result.exit_code == 1
        assert says in result.stdout
        assert log("dump", path).exit_code == 1
    path.write_bytes(filter_path(indexed, 0).read_bytes()[:-5])
    assert log("verify", indexed.parent).exit_code == 1


async def test_verify_finds_a_filter_that_lacks_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = KeyFilterBuilder.add
    monkeypatch.setattr(
        KeyFilterBuilder, "add", lambda self, section, hashes: add(self, section, list(hashes)[1:])
    )
    harness = Harness(tmp_path / "logs")
    await harness.service.start()
    partition = harness.open(LogConfig(mqd_key_index=True))
    harness.write(partition, build_batch([Record(0, NOW, b"only", b"v")]))
    roll(harness, partition)
    await sync_and_commit(harness, partition)
    assert await harness.service.key_indexer.build_one()
    await harness.service.close()
    result = log("verify", tmp_path)
    assert result.exit_code == 1 and "lacks the key of offset 0" in result.stdout
