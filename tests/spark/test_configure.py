"""`configure`: what it sets on the builder, and the Python of local workers."""

from __future__ import annotations

import os
import sys

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from pyspark_mqd import configure

NAMES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


@pytest.fixture(autouse=True)
def no_python(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, "")  # so that it is restored
        monkeypatch.delenv(name)


def test_local_workers_run_the_drivers_python() -> None:
    configure(SparkSession.Builder().master("local[2]"))
    assert [os.environ[name] for name in NAMES] == [sys.executable] * 2


def test_a_python_that_is_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/other/python")
    configure(SparkSession.Builder().master("local[2]"))
    assert os.environ["PYSPARK_PYTHON"] == "/other/python"
    assert "PYSPARK_DRIVER_PYTHON" not in os.environ


@pytest.mark.parametrize("master", ["spark://h:7077", None])
def test_workers_of_a_cluster_have_their_own_python(master: str | None) -> None:
    builder = SparkSession.Builder()
    configure(builder if master is None else builder.master(master))
    assert not set(NAMES) & set(os.environ)
    assert builder._options["spark.sql.adaptive.streaming.stateless.enabled"] == "false"


def test_a_python_of_the_builder_stays() -> None:
    configure(SparkSession.Builder().master("local").config("spark.pyspark.python", "/other"))
    assert not set(NAMES) & set(os.environ)
