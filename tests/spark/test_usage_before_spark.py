"""Mistakes of a command line are found before Spark starts, and name what to correct."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from mqd.client.errors import ClientError
from pyspark_mqd.errors import OptionError
from pyspark_mqd.options import parse_options
from pyspark_mqd.pipelines import cli
from pyspark_mqd.pipelines.__main__ import cli as group

ROLLUP = ("rollup", "--topics", "a")
ARCHIVE = ("archive", "--to", "lake", "--topics", "a")
UPSERT = ("upsert", "--to", "table", "--key", "id", "--topics", "a")
MIRROR = ("mirror", "--to", "127.0.0.1:1", "--topics", "a")


@pytest.mark.parametrize("words", [ROLLUP, ARCHIVE, MIRROR, UPSERT])
@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("--starting-offsets", "earlyest"), "Option 'startingOffsets' must be 'earliest'"),
        (("--topics", "a b"), "Option 'subscribe' names topic 'a b'"),
        (("--client", "request.timout.ms=5"), "Did you mean 'request.timeout.ms'?"),
    ],
)
def test_wrong_usage(words: tuple[str, ...], more: tuple[str, ...], sentence: str) -> None:
    shared = ("-b", "127.0.0.1:1", "--checkpoint", "state")
    done = CliRunner().invoke(group, [*words, *shared, *more])
    assert done.exit_code == cli.USAGE, done.output
    assert sentence in " ".join(done.output.split())


@pytest.mark.parametrize("words", [ARCHIVE, MIRROR])
def test_topics_and_a_pattern(words: tuple[str, ...]) -> None:
    given = [*words, "--topics-pattern", "a.*", "--checkpoint", "state"]
    done = CliRunner().invoke(group, given)
    assert "Specify only one of --topics and --topics-pattern" in done.output
    done = CliRunner().invoke(group, [*words[:3], "--checkpoint", "state"])
    assert "Specify the topics: --topics NAME,.." in done.output


@pytest.mark.parametrize("words", [ROLLUP, ARCHIVE, MIRROR])
def test_brokers_that_do_not_respond(words: tuple[str, ...], tmp_path: Path) -> None:
    checkpoint = tmp_path / "state"
    with pytest.raises((cli.Failure, ClientError)) as failed:
        group.main(
            [*words, "-b", "127.0.0.1:1", "--checkpoint", str(checkpoint)], standalone_mode=False
        )
    assert "nothing listens at 127.0.0.1:1" in str(failed.value)
    assert not checkpoint.exists()


def test_an_offset_that_is_none_names_its_option() -> None:
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "startingOffsets": "earlyest"}
    with pytest.raises(OptionError, match=r"^Option 'startingOffsets' must be .*got earlyest"):
        parse_options(given, streaming=True)


def test_a_pipeline_advises_its_own_flag() -> None:
    text = (
        "pyspark_mqd.markers.ExactlyOnceError: The marker is missing. Compare the topic with the "
        "batch; then set option 'acceptMissingMarkers' to 'true' for one start to write the batch, "
        "or start with a new checkpoint."
    )
    shown = cli.spark_message(text)
    assert "re-run once with --accept-missing-markers to write the batch" in shown
    assert "acceptMissingMarkers" not in shown
