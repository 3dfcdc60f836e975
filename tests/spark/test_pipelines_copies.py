"""What `replay`, `mirror`, `rollup` and `archive` decide before Spark runs. No Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from pyspark_mqd.pipelines.wrapped_reader import WrappedReader

pa = pytest.importorskip("pyarrow")

from pyspark_mqd.pipelines import archive, mirror_target, progress, replay, rollup  # noqa: E402
from pyspark_mqd.pipelines.__main__ import cli as group  # noqa: E402
from pyspark_mqd.pipelines.archive_commit import Archive  # noqa: E402
from pyspark_mqd.pipelines.archive_layout import (  # noqa: E402
    ArchivedFile,
    ArchivedRange,
    listing,
    staging_folder,
)
from pyspark_mqd.pipelines.archive_stage import stage, unique_path  # noqa: E402
from pyspark_mqd.pipelines.cli import Failure, Settings  # noqa: E402
from pyspark_mqd.pipelines.replay_read import (  # noqa: E402
    SCHEMA,
    Bounds,
    Pace,
    read_task,
    tasks_of,
)
from tests.spark.test_pipelines_archive_files import NOON, batch_of  # noqa: E402

NOON_US = round(NOON.timestamp() * 1_000_000)
HOUR_US = 3_600_000_000


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Offsets 0 to 29 of a partition, an hour apart; the second range has two dates."""
    archived = Archive(tmp_path)
    for number, (start, end) in enumerate(((0, 10), (10, 30))):
        covered = ArchivedRange("t", 0, start, end)
        batch = batch_of(start, end, hours=1.0)
        staged = list(stage([batch], covered, lambda _: unique_path(staging_folder(tmp_path, "q"))))
        archived.commit("q", number, staged)
    return tmp_path


def offsets(lake: Path, bounds: Bounds) -> list[int]:
    found: list[int] = []
    for task in tasks_of(list(listing(lake)), bounds):
        for batch in read_task(task, bounds):
            assert batch.schema == SCHEMA
            found += batch.column("offset").to_pylist()
    return found


@pytest.mark.parametrize(
    ("bounds", "wanted"),
    [
        (Bounds(), range(30)),
        (Bounds(5, 12), range(5, 12)),
        (Bounds(start_us=NOON_US + 8 * HOUR_US, end_us=NOON_US + 9 * HOUR_US), [8, 18]),
        (Bounds(20, None, NOON_US, NOON_US + 12 * HOUR_US), [20, 21]),
        (Bounds(start_us=NOON_US + 100 * HOUR_US), []),
    ],
)
def test_records_are_replayed_in_order_within_bounds(
    lake: Path, bounds: Bounds, wanted: Any
) -> None:
    assert offsets(lake, bounds) == list(wanted)


def test_only_files_that_may_matter_are_read() -> None:
    dates = ("2026-11-22", "2026-11-23", "2026-11-24", "", "__HIVE_DEFAULT_PARTITION__")
    day = NOON_US - 12 * HOUR_US
    files = [ArchivedFile(Path(date), date, ArchivedRange("t", 3, 0, 5)) for date in dates]
    bounds = Bounds(start_us=day, end_us=day + 24 * HOUR_US)
    assert [file.date for file in files if bounds.holds(file)] == ["2026-11-23"]
    assert [file.date for file in files if Bounds(5).holds(file)] == []
    kept = [file.date for file in files if Bounds(4).holds(file)]
    assert kept == [date for date in dates if date]


def test_pace_holds_a_task_back() -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    pace = Pace(10.0, clock=lambda: now[0], sleep=sleep)
    sizes = [each.num_rows for each in pace.hold(iter([batch_of(0, 25), batch_of(25, 30)]))]
    assert sizes == [10, 10, 5, 5]
    assert now[0] == pytest.approx(2.5)


def test_times() -> None:
    assert replay.parse_time("2026-11-23T12:00:00Z") == NOON_US
    assert replay.parse_time("2026-11-23 12:00") == NOON_US
    assert replay.parse_time("2026-11-23T13:00:00+01:00") == NOON_US
    assert replay.parse_time("2026-11-23") == NOON_US - 12 * HOUR_US
    with pytest.raises(click.BadParameter):
        replay.parse_time("yesterday")


def test_an_archive_without_the_topic_is_refused(lake: Path) -> None:
    with pytest.raises(Failure, match="no records of topic 'u'"):
        replay.archived_files(lake, "u", delta=False)


# -- mirror


@pytest.mark.parametrize(
    ("topics", "names", "prefix", "pattern"),
    [
        (["a"], {}, "", None),
        (["a", "b"], {"a": "b"}, "x.", None),
        (["a"], {}, "a.", "^a"),
    ],
)
def test_a_mirror_that_reads_what_it_writes_is_refused(
    topics: list[str], names: dict[str, str], prefix: str, pattern: str | None
) -> None:
    configuration = mirror_target.MirrorConfiguration({}, {}, "", names, prefix, pattern=pattern)
    mirror_target.refuse_circle(configuration, topics)
    with pytest.raises(Failure, match="read and written"):
        mirror_target.refuse_circle(replace(configuration, same_cluster=True), topics)


def test_names_of_mirrored_topics() -> None:
    configuration = mirror_target.MirrorConfiguration(
        {}, {}, "", {"a": "b"}, "copy.", pattern="^[ac]$", same_cluster=True
    )
    mirror_target.refuse_circle(configuration, ["a", "c"])
    assert [configuration.target_of(topic) for topic in ("a", "c")] == ["b", "copy.c"]


# -- rollup, archive, upsert, progress


def test_aggregates() -> None:
    parsed = [rollup.parse_aggregate(text) for text in ("count", "sum:$.a.b", "avg:$.x=mean")]
    assert [(each.function, each.path, each.name) for each in parsed] == [
        ("count", "", "count"),
        ("sum", "$.a.b", "sum_a_b"),
        ("avg", "$.x", "mean"),
    ]
    for text in ("median:$.a", "sum", "sum:a", "count:$.a"):
        with pytest.raises(click.BadParameter):
            rollup.parse_aggregate(text)


def test_resuming_from_an_archive() -> None:
    covered = {("t", 0): [(0, 5), (7, 9)], ("t", 1): [(3, 4)]}
    assert json.loads(archive.resume_offsets({"t": 3, "u": 1}, covered)) == {
        "t": {"0": 9, "1": 4, "2": -2},
        "u": {"0": -2},
    }


def test_object_stores_are_refused_with_a_message(tmp_path: Path) -> None:
    assert archive.local_folder(f"file://{tmp_path}", "--to") == tmp_path
    assert archive.local_folder("lake", "--to").is_absolute()
    with pytest.raises(Failure, match="no atomic rename"):
        archive.local_folder("s3a://bucket/lake", "--to")


def test_backlog_of_a_query() -> None:
    source = {
        "latestOffset": '{"t": {"0": 10, "1": 5}, "__mqd": {"version": 1}}',
        "endOffset": {"t": {"0": 4, "1": 5}},
    }
    assert progress.backlog(source) == 6
    assert progress.backlog({"latestOffset": None, "endOffset": "no json"}) == 0


def test_patterns_are_those_of_the_source() -> None:
    configuration = mirror_target.MirrorConfiguration(
        {}, {}, "", {}, "copy.", pattern=r"\p{Alpha}", same_cluster=True
    )
    with pytest.raises(Failure):  # Java's class of letters: Python's `re` would refuse it
        mirror_target.refuse_circle(configuration, ["a"])


def test_a_mirror_prepares_the_target_for_what_is_new_in_a_micro_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("pyspark")
    from pyspark_mqd.pipelines import mirror_source

    ends: list[dict[str, Any]] = [
        {"a": {"0": 1, "1": 0}}, {"a": {"0": 2, "1": 5}}, {"a": {"0": 2, "2": 0}, "b": {"0": 0}},
    ]  # fmt: skip
    reader = mirror_source.MirrorReader(None, "{}")
    prepared: list[Any] = []
    monkeypatch.setattr(reader, "_prepare", prepared.append)
    for end in ends:
        monkeypatch.setattr(WrappedReader, "latestOffset", lambda *_, end=end: end)
        assert reader.latestOffset({}, None) == end  # type: ignore[arg-type]  # no limit
    assert prepared == [{"a": 2}, {"a": 3, "b": 1}]


@pytest.mark.parametrize("name", ["archive_source", "archive_stage", "mirror_source"])
def test_what_tasks_import_needs_no_click(name: str) -> None:
    """Workers need the packages that `mqd-spark package` prints, and click is not one of them."""
    pytest.importorskip("pyspark")
    probe = f"import sys; sys.modules['click'] = None; import pyspark_mqd.pipelines.{name}"
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", probe], env=path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_configuration_reaches_the_source_of_a_mirror() -> None:
    pytest.importorskip("pyspark")
    from pyspark_mqd.pipelines.mirror_source import MirrorSource, options_of

    target = {"kafka.bootstrap.servers": "b:1", "kafka.client.id": "x", "markerTopic": "m"}
    given = mirror_target.MirrorConfiguration(
        {"subscribe": "a"}, target, "c", {"a": "b"}, pattern="a"
    )
    options = options_of(given)
    assert mirror_target.MirrorConfiguration(**json.loads(options["mirror.configuration"])) == given
    assert given.target_settings() == Settings("b:1", client={"kafka.client.id": "x"})
    assert MirrorSource(options).schema().names[:3] == ["key", "value", "topic"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("replay", "--from", "{lake}", "--topic", "t"),
        ("rollup", "--topics", "t", "--to-topic", "u", "--checkpoint", "c"),
        ("mirror", "--topics", "t", "--to", "127.0.0.1:1", "--checkpoint", "c"),
        ("archive", "--topics", "t", "--to", "{lake}", "--checkpoint", "c",
         "--starting-offsets", "from-archive"),
    ],
)  # fmt: skip
def test_commands_give_client_options_to_their_client(
    lake: Path, arguments: tuple[str, ...]
) -> None:
    """An option that the client refuses shows that it was given; no broker is needed."""
    given = [each.format(lake=lake) for each in arguments]
    given += ["--client", "request.timeout.ms=soon", "-b", "127.0.0.1:1"]
    result = CliRunner().invoke(group, given)
    assert result.exit_code and "'soon'" in f"{result.exception} {result.output}"
