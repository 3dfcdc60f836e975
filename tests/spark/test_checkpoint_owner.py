"""A checkpoint belongs to one pipeline; the check precedes Java and the first query."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_mqd.pipelines import session
from pyspark_mqd.pipelines.checkpoint_owner import NAME, claim
from pyspark_mqd.pipelines.cli import Failure, Settings


def test_a_checkpoint_is_of_one_pipeline(tmp_path: Path) -> None:
    checkpoint = tmp_path / "state" / "orders"
    claim(str(checkpoint), "archive")
    claim(f"file://{checkpoint}", "archive")
    with pytest.raises(Failure, match=r"is of pipeline 'archive', not of 'mirror'\.") as failed:
        claim(str(checkpoint), "mirror")
    assert "--checkpoint" in failed.value.remedy


def test_a_file_that_is_incomplete_refuses_nothing(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("")
    claim(str(tmp_path), "archive")


def test_an_object_store_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    claim("s3a://bucket/state", "archive")
    assert list(tmp_path.iterdir()) == []


def test_every_session_checks_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(str(tmp_path), "archive")
    monkeypatch.setattr(session, "prepare", lambda: pytest.fail("Java was looked for"))
    settings = Settings(checkpoint=str(tmp_path))
    with (
        pytest.raises(Failure, match="is of pipeline 'archive', not of 'rollup'"),
        session.session(settings, "rollup", brokers=False),
    ):
        pass
