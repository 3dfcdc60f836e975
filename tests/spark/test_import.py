"""Importing the package needs nothing but pyspark, and never breaks anybody else's data source."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from chaos.ensemble import Ensemble
from mqd.client import sync
from tests.spark.source_tools import fill

ROOT = Path(__file__).parents[2]
SCRIPT_SECONDS = 150

BLOCK = """
import sys

class Block:
    blocked = {blocked!r}
    ours = {ours!r}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.blocked:
            raise ImportError(f"{{name}} is blocked")
        if name.partition(".")[0] in self.ours and self.imported_by_us():
            raise ImportError(f"{{name}} is blocked for the connector")

    def imported_by_us(self):
        frame = sys._getframe()
        while frame is not None:
            if "pyspark_mqd" in frame.f_code.co_filename:
                return True
            frame = frame.f_back
        return False

sys.meta_path.insert(0, Block())
"""

SESSION = """
import os, sys
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
from pyspark_mqd import configure
spark = configure(
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.log.level", "OFF")
).getOrCreate()
"""

OTHER_SOURCE = """
from pyspark.sql.datasource import DataSource, DataSourceReader
class Reader(DataSourceReader):
    def read(self, partition):
        yield from ((1,), (2,), (3,))
class Other(DataSource):
    @classmethod
    def name(cls):
        return "other"
    def schema(self):
        return "number int"
    def reader(self, schema):
        return Reader()
spark.dataSource.register(Other)
assert spark.read.format("other").load().count() == 3
try:
    spark.read.format("mqd").option("subscribe", "t").load().count()
except Exception as error:
    assert "mqd is blocked" in str(error), error
else:
    raise AssertionError("mqd was not blocked")
print("passed")
"""

READ = """
frame = spark.read.format("mqd").option("kafka.bootstrap.servers", sys.argv[1])
assert frame.option("subscribe", sys.argv[2]).option("includeHeaders", "true").load().count() == 7
print("passed")
"""


def run(script: str, *arguments: str, cwd: Path, path: tuple[Path, ...] = ()) -> str:
    """A script in a process of its own, and Spark's workers likewise; returns what it prints."""
    folders = [*path, ROOT / "spark", ROOT]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environ,
        timeout=SCRIPT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def block(folder: Path, *blocked: str, ours: tuple[str, ...] = ()) -> Path:
    """A `sitecustomize` that makes modules fail to import: for all, or for the connector only."""
    (folder / "sitecustomize.py").write_text(BLOCK.format(blocked=set(blocked), ours=set(ours)))
    return folder


def test_nothing_but_pyspark_is_imported(tmp_path: Path) -> None:
    script = """
import sys
import pyspark_mqd
assert pyspark_mqd.DefaultSource.name() == "mqd"
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"mqd", "trio", "numpy", "pyarrow", "pandas"}, loaded
"""
    blocked = block(tmp_path, "mqd", "trio", "numpy", "pyarrow", "pandas")
    run(script, cwd=tmp_path, path=(blocked,))


def test_without_pyspark_the_import_passes_too(tmp_path: Path) -> None:
    script = """
import pyspark_mqd
assert not hasattr(pyspark_mqd, "DefaultSource")
"""
    run(script, cwd=tmp_path, path=(block(tmp_path, "pyspark"),))


def test_another_source_works_while_the_connector_is_broken(
    spark: SparkSession, tmp_path: Path
) -> None:
    """PySpark itself needs pyarrow for sources; the connector finds none, nor numpy, nor mqd."""
    blocked = block(tmp_path, "mqd", ours=("pyarrow", "numpy"))
    assert "passed" in run(SESSION + OTHER_SOURCE, cwd=tmp_path, path=(blocked,))


def test_pandas_is_not_needed(
    spark: SparkSession,
    cluster: Ensemble,
    client: sync.BlockingClient,
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    topic = new_topic(1)
    fill(client, topic, {0: 7})
    blocked = block(tmp_path, "pandas")
    found = run(SESSION + READ, cluster.bootstrap, topic, cwd=tmp_path, path=(blocked,))
    assert "passed" in found
