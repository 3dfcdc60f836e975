"""`mqctl log dump` and `mqctl log verify`, on valid and on damaged directories."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result

from mqctl.__main__ import cli
from mqctl.app import Failure
from mqd.io.disk import OsDisk
from mqd.log.disk.known_directories import KnownDirectories
from mqd.log.log_config import LogConfig
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.compression import Codec
from mqd.protocol.files import CLEANER_CHECKPOINT
from mqd.protocol.record_reader import Record
from tests.log.compacting import sync_and_commit
from tests.log.support import Harness, batch

KAFKA = Path(__file__).parent.parent / "log" / "kafka-4.3.1"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["log", *map(str, arguments)])


@pytest.fixture
async def data(tmp_path: Path) -> Path:
    harness = Harness(tmp_path / "logs")
    await harness.service.start()
    log = harness.open(LogConfig(segment_bytes=1000, index_interval_bytes=100))
    for number in range(20):
        codec = Codec.SNAPPY if number % 2 else Codec.NONE
        harness.write(
            log,
            batch(b"v%d" % number * 20, b"\xff", codec=codec, producer_id=3, sequence=2 * number),
            epoch=number // 7,
        )
    harness.service.checkpoint_high_watermark(log.topic_partition, 40)
    await harness.service.close()
    return tmp_path


async def test_verify_finds_nothing_in_a_good_directory(data: Path) -> None:
    result = run("verify", data)
    assert result.exit_code == 0, result.output
    assert (
        "1 partitions, 20 batches" in result.stderr
        and "0 faults" in result.stderr
        and "reading" not in result.stderr
    )
    assert result.stdout == ""
    assert json.loads(run("verify", data / "logs", "-o", "json").stdout)["findings"] == []


async def test_verify_takes_one_partition(data: Path) -> None:
    result = run("verify", data / "logs" / "orders-0")
    assert result.exit_code == 0 and "1 partitions, 20 batches" in result.stderr
    segment = max((data / "logs" / "orders-0").glob("*.log"))
    segment.write_bytes(segment.read_bytes()[:-1])
    assert run("verify", data / "logs" / "orders-0").exit_code == 1


async def test_a_data_directory_may_have_the_name_of_a_partition(data: Path) -> None:
    home = data.rename(data.with_name("node-1"))
    result = run("verify", home)
    assert result.exit_code == 0 and "1 partitions, 20 batches" in result.stderr
    shutil.copytree(home, home.with_name("node-2"))
    result = run("verify", home.parent)  # as `mqd dev` makes it
    assert result.exit_code == 0 and "2 partitions, 40 batches" in result.stderr


async def test_verify_of_a_data_directory_finds_its_log_directories(
    data: Path, tmp_path: Path
) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    (tmp_path / "logs").rename(elsewhere / "one")
    (elsewhere / "two").mkdir()
    paths = [elsewhere / "one", elsewhere / "two"]
    known = KnownDirectories(paths={uuid4(): str(path) for path in paths})
    (home / "log-directories").write_bytes(known.encode())
    result = run("verify", home, "-o", "json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["directories"] == [str(path) for path in paths]
    assert "1 partitions, 20 batches" in result.stderr

    (elsewhere / "two").rmdir()
    result = run("verify", home)
    assert result.exit_code == 1 and "missing, although it is a log directory" in result.stdout

    (elsewhere / "one").rename(home / "one")
    known.paths = {uuid4(): str(elsewhere / "one")}
    (home / "log-directories").write_bytes(known.encode())
    result = run("verify", home)
    assert result.exit_code == 0 and "1 partitions, 20 batches" in result.stderr, (
        "a copy of the data directory"
    )

    (home / "log-directories").write_text("nonsense")
    result = run("verify", home)
    assert (
        isinstance(result.exception, Failure) and "is not a valid line" in result.exception.message
    )


async def test_verify_without_partitions_fails(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "metadata").mkdir()
    for place in (tmp_path, tmp_path / "logs", tmp_path / "metadata"):
        result = run("verify", place)
        assert result.exit_code == 1 and isinstance(result.exception, Failure)
        assert "nothing was verified" in result.exception.message
    assert "not checked" in run("verify", tmp_path).stderr


async def test_verify_beside_a_running_node_warns(data: Path) -> None:
    for directory in (data, data / "logs"):
        lock = OsDisk().lock(directory / ".lock")
        try:
            for place in (data / "logs", data / "logs" / "orders-0"):
                result = run("verify", place)
                assert result.exit_code == 0 and "a node is running on" in result.stderr
        finally:
            lock.close()
    assert "a node is running" not in run("verify", data).stderr


async def test_missing_offsets_of_a_compacted_partition_are_not_findings(tmp_path: Path) -> None:
    harness = Harness(tmp_path / "logs")
    await harness.service.start()
    log = harness.open(
        LogConfig(
            segment_bytes=400, index_interval_bytes=100, cleanup_policy=frozenset({"compact"})
        )
    )
    for number in range(20):
        harness.write(log, batch(b"v%d" % number * 20, producer_id=3, sequence=number))
    await sync_and_commit(harness, log)
    assert await harness.service.compactor.clean_one()
    await harness.service.close()
    partition = tmp_path / "logs" / "orders-0"
    for path in (tmp_path, partition):
        result = run("verify", path)
        assert result.exit_code == 0, result.output
    offsets = [
        json.loads(line)["offset"]
        for line in run("dump", partition, "--records", "-o", "jsonl").stdout.splitlines()
    ]
    assert 0 < len(offsets) < 5 and offsets[-1] == 19
    [row] = json.loads(run("dump", tmp_path / "logs" / CLEANER_CHECKPOINT, "-o", "json").stdout)
    assert row["offset"] == log.cleaned_to
    (tmp_path / "logs" / CLEANER_CHECKPOINT).unlink()
    result = run("verify", tmp_path)
    assert result.exit_code == 1 and "are missing" in result.stdout
    assert run("verify", tmp_path, "--allow-gaps").exit_code == 0


def test_log_commands_send_no_requests() -> None:
    for command in ("dump", "verify"):
        text = run(command, "--help").stdout
        assert "--output" in text and "--bootstrap" not in text and "--timeout" not in text


async def test_verify_accepts_files_of_kafka(tmp_path: Path) -> None:
    shutil.copytree(KAFKA, tmp_path / "c-0")
    assert run("verify", tmp_path).exit_code == 0


DAMAGE: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "crc": (".log", lambda content: content[:-1] + bytes([content[-1] ^ 1]), "CRC-32C"),
    "torn": (".log", lambda content: content[:-1], "cut off"),
    "zeros": (".log", lambda content: content + b"\0" * 100, "magic 0"),
    "hole": (".log", lambda content: b"", "missing"),
    "index": (
        ".index",
        lambda content: content[:4] + b"\0\0\0\7" + content[8:],
        "wrong entry: no batch at byte",
    ),
    "index cut": (".index", lambda content: content[:-3], "whole number"),
    "time index": (
        ".timeindex",
        lambda content: content[:7] + bytes([content[7] ^ 1]) + content[8:],
        "largest timestamp",
    ),
    "snapshot": (".snapshot", lambda content: content[:-1] + b"\7", "CRC"),
}


@pytest.mark.parametrize("kind", DAMAGE)
async def test_verify_finds_damage(data: Path, kind: str) -> None:
    suffix, damage, says = DAMAGE[kind]
    path = sorted((data / "logs" / "orders-0").glob(f"*{suffix}"))[-2 if kind == "hole" else -1]
    path.write_bytes(damage(path.read_bytes()))
    result = run("verify", data, "-o", "json")
    assert result.exit_code == 1
    findings = json.loads(result.stdout)["findings"]
    assert any(says in finding["problem"] for finding in findings), findings
    assert says in run("verify", data).stdout


@pytest.mark.parametrize(
    "name, content, says",
    [
        ("replication-offset-checkpoint", b"0\n1\norders 0 41\n", "its log ends at 40"),
        ("recovery-point-offset-checkpoint", b"0\n9\n", "lines"),
        ("orders-0/leader-epoch-checkpoint", b"0\n1\n0 0\n", "leader epoch 1"),
        ("orders-0/partition.metadata", b"junk", "':'"),
        ("orders-0/00000000000000000099.snapshot", b"", "cut off"),
    ],
)
async def test_verify_checks_the_small_files(
    data: Path, name: str, content: bytes, says: str
) -> None:
    (data / "logs" / name).write_bytes(content)
    result = run("verify", data, "-o", "json")
    assert result.exit_code == 1
    assert any(says in finding["problem"] for finding in json.loads(result.stdout)["findings"]), (
        result.stdout
    )


async def test_epochs_that_a_killed_node_did_not_checkpoint_are_no_findings(data: Path) -> None:
    """The file may be outdated from the recovery point on; the batches have their own epochs."""
    home = data / "logs"
    (home / ".kafka_cleanshutdown").unlink()
    bases = sorted(int(path.stem) for path in (home / "orders-0").glob("*.log"))
    synced = max(base for base in bases if base <= 26)
    (home / "recovery-point-offset-checkpoint").write_text(f"0\n1\norders 0 {synced}\n")
    for lines in ("0\n2\n0 0\n1 14\n", "0\n3\n0 0\n1 14\n7 99\n", f"0\n3\n0 0\n1 14\n3 {synced}\n"):
        (home / "orders-0" / "leader-epoch-checkpoint").write_text(lines)
        for place in (home, home / "orders-0"):
            result = run("verify", place)
            assert (result.exit_code, result.stdout) == (0, ""), result.stdout
    (home / "orders-0" / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    result = run("verify", home)
    assert result.exit_code == 1 and "leader epoch 1, but 0 in the checkpoint" in result.stdout, (
        "below the recovery point"
    )


async def test_descending_epochs_are_found_without_the_checkpoint(data: Path) -> None:
    home = data / "logs" / "orders-0"
    (home / "leader-epoch-checkpoint").unlink()
    assert run("verify", home).exit_code == 0
    first = min(home.glob("*.log"))
    content = bytearray(first.read_bytes())
    content[12:16] = (5).to_bytes(4, "big")  # partition_leader_epoch, which no CRC covers
    first.write_bytes(content)
    assert "leader epoch 0 follows epoch 5" in run("verify", home).stdout


async def test_batches_below_the_log_start_need_no_epoch_in_the_checkpoint(data: Path) -> None:
    """Deleted records whose segment is still there."""
    (data / "logs" / "orders-0" / "leader-epoch-checkpoint").write_text("0\n3\n0 4\n1 14\n2 28\n")
    assert run("verify", data).exit_code == 0


async def test_dump_of_batches_and_records(data: Path) -> None:
    home = data / "logs" / "orders-0"
    rows = [json.loads(line) for line in run("dump", home, "-o", "jsonl").stdout.splitlines()]
    assert [(row["base_offset"], row["records"], row["crc"]) for row in rows] == [
        (2 * number, 2, "ok") for number in range(20)
    ]
    assert {row["codec"] for row in rows} == {"none", "snappy"} and len(
        {row["file"] for row in rows}
    ) > 2
    records = json.loads(run("dump", home, "--records", "-o", "json").stdout)
    assert [record["offset"] for record in records] == list(range(40))
    assert (records[0]["value"], records[1]["value"]) == ("v0" * 20, "\\xff")
    table = run("dump", home).stdout.splitlines()
    assert len(table) == 21 and table[0].split()[:3] == ["FILE", "POSITION", "BASE"]
    segment = sorted(home.glob("*.log"))[1]
    assert (
        run("dump", segment, "-o", "yaml").stdout.startswith(f"- file: '{segment.name}'")
        or segment.name in run("dump", segment).stdout
    )


async def test_dump_of_the_other_files(data: Path) -> None:
    home = data / "logs" / "orders-0"
    first = sorted(home.glob("*.log"))[0]
    names = (
        first.with_suffix(".index"),
        first.with_suffix(".timeindex"),
        max(home.glob("*.snapshot")),
        home / "leader-epoch-checkpoint",
        home / "partition.metadata",
        data / "logs" / "replication-offset-checkpoint",
    )
    rows = [json.loads(run("dump", name, "-o", "json").stdout) for name in names]
    assert all(rows)
    assert [row["last_sequence"] for row in rows[2]] == [31, 33, 35, 37, 39] and rows[3] == [
        {"epoch": 0, "start_offset": 0},
        {"epoch": 1, "start_offset": 14},
        {"epoch": 2, "start_offset": 28},
    ]
    assert rows[5] == [{"topic": "orders", "partition": 0, "offset": 40}]


async def test_dump_of_an_index_without_entries(data: Path) -> None:
    index = max((data / "logs" / "orders-0").glob("*.index"))
    index.write_bytes(b"")
    table = run("dump", index)
    assert table.exit_code == 0 and table.stdout == "" and "has no entries" in table.stderr
    assert run("dump", index, "-o", "json").stdout == "[]\n"


async def test_dump_of_the_metadata(tmp_path: Path) -> None:
    (tmp_path / "metadata").mkdir()
    for name in ("journal", "snapshot", "quorum-state", "reserve"):
        (tmp_path / "metadata" / name).write_bytes(b"?")
        result = run("dump", tmp_path / "metadata" / name)
        assert (
            result.exit_code == 1
            and isinstance(result.exception, Failure)
            and "Raft quorum" in result.exception.message
        )


async def test_dump_of_headers(tmp_path: Path) -> None:
    records = [Record(0, 1, b"k", b"v", (("h", b"1"), ("h", b"\xff"), ("n", None)))]
    segment = tmp_path / f"{0:020}.log"
    segment.write_bytes(build_batch(records))
    (row,) = json.loads(run("dump", segment, "--records", "-o", "json").stdout)
    assert run("dump", segment, "--records").stdout.splitlines()[1].split()[-1] == "h=1,h=\\xff,n=-"
    assert row["headers"] == [
        {"name": "h", "value": "1"},
        {"name": "h", "value": "\\xff"},
        {"name": "n", "value": None},
    ]


async def test_dump_of_damage(data: Path) -> None:
    segment = max((data / "logs" / "orders-0").glob("*.log"))
    segment.write_bytes(segment.read_bytes() + b"\0" * 80)
    assert json.loads(run("dump", segment, "-o", "json").stdout)[-1]["crc"].startswith("magic 0")
    assert (
        "magic 0" in json.loads(run("dump", segment, "--records", "-o", "json").stdout)[-1]["value"]
    )
    (data / "odd").write_bytes(b"?")
    assert run("dump", data / "odd").exit_code == 1
    assert run("dump", data / "logs").exit_code == 1
    assert run("dump", data / "nowhere").exit_code == 2
