"""What a checkpoint says of its query, and the one change of it that is safe."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from mqd.types import TopicPartition
from pyspark_mqd.pipelines import checkpoint, lag, offsets
from pyspark_mqd.pipelines.checkpoint import Checkpoint, CheckpointError, OffsetLogEntry

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1795420344914,"conf":{}}'


def entry(batch: int, *sources: str) -> OffsetLogEntry:
    return OffsetLogEntry(batch, METADATA, sources)


def at(**partitions: int) -> str:
    """Offsets of topic a: `at(p0=5, p1=7)`."""
    return json.dumps({"a": {name[1:]: offset for name, offset in partitions.items()}})


def write(folder: Path, entries: list[OffsetLogEntry], committed: int) -> Path:
    """A checkpoint as Spark writes it, with the checksums of Hadoop beside its files."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"4711"}')
    for each in entries:
        (folder / "offsets" / str(each.batch)).write_text(checkpoint.render_entry(each))
        (folder / "offsets" / f".{each.batch}.crc").write_bytes(b"crc\0")
    for batch in range(committed + 1):
        (folder / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return folder


def settled(folder: Path) -> None:
    """Make the files as old as those of a query that stopped an hour ago."""
    for path in folder.rglob("*"):
        os.utime(path, (os.path.getmtime(path) - 3600,) * 2)


def test_an_entry_of_the_log_is_read_and_written_unchanged() -> None:
    text = f"v1\n{METADATA}\n{at(p0=5)}\n-"
    parsed = checkpoint.parse_entry(3, text)
    assert (parsed.batch, parsed.sources, parsed.planned_ms) == (3, (at(p0=5), "-"), 1795420344914)
    assert checkpoint.render_entry(parsed) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("v9\n{}\n{}", "version 'v9' of Spark's offset log"),
        ("v1\n{}", "is cut short"),
        ("v1\n{]\n{}", "'offsets/3' of the checkpoint is damaged: line 2"),
        ("v1\nx]\n{}", "'offsets/3' of the checkpoint is damaged: line 2"),
        ('v1\n{}\n{"a":{"0":', "'offsets/3' of the checkpoint is damaged: line 3"),
        ("v1\n{}\n", "'offsets/3' of the checkpoint is damaged: line 3"),
    ],
)
def test_an_entry_that_cannot_be_understood_is_refused(text: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        checkpoint.parse_entry(3, text)


def test_a_folder_is_read_as_spark_does(tmp_path: Path) -> None:
    folder = write(tmp_path / "c", [entry(each, at(p0=each)) for each in (8, 9, 10)], committed=9)
    (folder / "offsets" / "11.tmp").write_text("")
    found = checkpoint.read_checkpoint(checkpoint.folder_of(f"file://{folder}"))
    assert (found.query_id, found.committed, found.stateful) == ("4711", 9, False)
    assert [each.batch for each in found.entries] == [8, 9, 10]
    assert found.planned is not None and found.planned.batch == 10
    assert found.done is not None and found.done.batch == 9


@pytest.mark.parametrize("content", [b"\xff\xfe", b"v1\n{}\n{", b"v1"])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    folder = write(tmp_path / "c", [entry(each, at(p0=each)) for each in (8, 9)], committed=9)
    (folder / "offsets" / "9").write_bytes(content)
    with pytest.raises(CheckpointError, match="'offsets/9' of the checkpoint is damaged") as failed:
        checkpoint.read_checkpoint(folder)
    assert "Restore the checkpoint" in failed.value.remedy


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not the checkpoint of a streaming query"):
        checkpoint.read_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="is not on a file system of this machine"):
        checkpoint.folder_of("s3a://bucket/checkpoint")
    with pytest.raises(CheckpointError, match="has no batch yet"):
        checkpoint.read_checkpoint(write(tmp_path / "empty", [], committed=-1))


def test_the_source_with_topics_is_found_among_others() -> None:
    rate, topics = '{"offset":10,"timestamp":2000}', at(p0=5)
    assert Checkpoint("q", (entry(0, rate, topics),), 0).source_of(None) == 1
    with pytest.raises(CheckpointError, match="The sources 0, 1 of the query"):
        Checkpoint("q", (entry(0, topics, topics),), 0).source_of(None)
    assert Checkpoint("q", (entry(0, topics, topics),), 0).source_of(1) == 1
    with pytest.raises(CheckpointError, match="No source of the query has offsets of topics"):
        Checkpoint("q", (entry(0, rate, "-"),), 0).source_of(None)


def test_a_reset_moves_the_end_of_the_last_batch_that_is_done() -> None:
    extra = {"version": 1, "topics": {"a": {"id": "xyz", "epochs": {"0": 4, "1": 4}}}}
    last = json.dumps({"a": {"0": 50, "1": 70}, "__mqd": extra})
    found = Checkpoint("q", (entry(6, at(p0=1)), entry(7, "other", last)), committed=7)
    changed = checkpoint.plan_reset(found, 1, {A0: 20})
    assert (changed.batch, changed.metadata, changed.sources[0]) == (7, METADATA, "other")
    assert json.loads(changed.sources[1]) == {
        "a": {"0": 20, "1": 70},
        "__mqd": {"version": 1, "topics": {"a": {"id": "xyz", "epochs": {"1": 4}}}},
    }


def test_a_reset_is_refused_while_a_batch_is_planned_and_not_done() -> None:
    found = Checkpoint("q", (entry(6, at(p0=1)), entry(7, at(p0=9))), committed=6)
    with pytest.raises(CheckpointError, match="Batch 7 is planned and not done") as refusal:
        checkpoint.plan_reset(found, 0, {A0: 0})
    assert "availableNow" in refusal.value.remedy


@pytest.mark.parametrize(
    ("target", "message"),
    [({B0: 1}, "does not read 'b-0'"), ({A0: -3}, "-3 is not an offset of 'a-0'")],
)
def test_a_reset_to_nowhere_is_refused(target: dict[TopicPartition, int], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        checkpoint.plan_reset(Checkpoint("q", (entry(0, at(p0=1)),), 0), 0, target)


def test_targets_outside_of_the_log_are_found() -> None:
    starts, ends = {A0: 10, A1: 0}, {A0: 20, A1: 5}
    assert checkpoint.out_of_range({A0: 10, A1: 5}, starts, ends) == []
    assert checkpoint.out_of_range({A0: 9, A1: 6}, starts, ends) == [A0, A1]


def test_writing_keeps_the_old_file_and_drops_its_checksum(tmp_path: Path) -> None:
    folder = write(tmp_path / "c", [entry(0, at(p0=1)), entry(1, at(p0=9))], committed=1)
    kept = checkpoint.write_entry(folder, entry(1, at(p0=2)))
    assert checkpoint.read_checkpoint(folder).latest == entry(1, at(p0=2))
    assert checkpoint.parse_entry(1, kept.read_text()) == entry(1, at(p0=9))
    assert sorted(os.listdir(folder / "offsets")) == [".0.crc", "0", "1"]


def test_a_query_that_seems_to_run_is_left_alone(tmp_path: Path) -> None:
    folder = write(tmp_path / "c", [entry(0, at(p0=1))], committed=0)
    with pytest.raises(CheckpointError, match=r"its checkpoint was written \d seconds ago"):
        offsets.refuse_running(str(folder), folder, 60)
    settled(folder)
    offsets.refuse_running(str(folder), folder, 60)


def test_processes_with_the_checkpoint_on_their_command_line_are_found(tmp_path: Path) -> None:
    lines = {
        1: ("systemd",),
        70: ("python", "mqd-spark", "archive", "--checkpoint", "state/a"),
        71: ("java", "SparkSubmit", "--checkpoint=state/a"),
        72: ("mqd-spark", "lag", "--checkpoint", "state/a"),
        73: ("mqd-spark", "archive", "--checkpoint", "state/ab"),
        80: ("timeout", "9", "--checkpoint", "state/a"),
        os.getpid(): ("mqd-spark", "offsets", "--checkpoint", "state/a"),
    }
    parents = {os.getpid(): 80}
    for number, arguments in lines.items():
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "cmdline").write_bytes(
            b"\0".join(each.encode() for each in arguments) + b"\0"
        )
        (tmp_path / str(number) / "stat").write_text(
            f"{number} (a (b) c) S {parents.get(number, 1)} 0"
        )
    assert checkpoint.processes_with({"state/a"}, tmp_path) == [70, 71]


# -- what the commands print


def run(*arguments: str) -> str:
    result = CliRunner().invoke(offsets.command, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_show_prints_where_the_query_resumes_and_what_is_planned(tmp_path: Path) -> None:
    entries = [entry(3, at(p0=1)), entry(4, at(p0=5, p1=0)), entry(5, at(p0=9, p1=4))]
    folder = write(tmp_path / "c", entries, committed=4)
    shown = json.loads(run("show", "--checkpoint", str(folder), "-o", "json"))
    assert (shown["last_done_batch"], shown["planned_batch"], shown["state"]) == (4, 5, "no")
    assert shown["rows"] == [
        {"topic": "a", "partition": 0, "start": 1, "next": 5, "planned": 9},
        {"topic": "a", "partition": 1, "start": None, "next": 0, "planned": 4},
    ]
    assert run("show", "--checkpoint", str(folder), "--starting-offsets") == '{"a":{"0":5,"1":0}}\n'
    assert "PLANNED-END" in run("show", "--checkpoint", str(folder))


def test_places_are_offsets_names_or_times() -> None:
    assert offsets.given_offsets('{"a":{"0":5,"1":-2}}', []) == {A0: 5, A1: -2}
    assert offsets.given_offsets("earliest", []) == {}
    assert offsets.time_specs("latest", [A0]) == {A0: -1}
    assert offsets.time_specs("1970-01-01T00:01:00", [A0]) == {A0: 60_000}
    assert offsets.time_specs("1970-01-01T01:01:00+01:00", [A0]) == {A0: 60_000}


def test_changes_say_what_becomes_of_the_rows() -> None:
    rows = offsets.changes({A0: 50, A1: 70, B0: 3}, {A0: 20, A1: 75, B0: 3})
    assert [row["rows"] for row in rows] == ["30 read again", "5 skipped", ""]


def test_lag_counts_what_no_batch_has_done() -> None:
    positions, starts = {A0: 5, A1: 3, B0: 2}, {A0: 0, A1: 10, TopicPartition("a", 2): 4}
    ends = {A0: 25, A1: 12, TopicPartition("a", 2): 9}
    rows = lag.rows_of(positions, starts, ends, {A0: 1_000}, now_ms=61_000)
    assert [(row["lag"], row["behind_seconds"], row["note"]) for row in rows] == [
        (20, 60.0, ""),
        (9, None, "7 offsets were deleted before they were read"),
        (5, None, "new: not read yet"),
        (None, None, "the topic or partition is gone"),
    ]
    summary = lag.summary_of(rows)
    assert (summary["total_lag"], summary["min_lag"], summary["max_lag"]) == (34, 5, 20)
    assert (summary["avg_lag"], summary["max_behind_seconds"]) == (34 / 3, None)
