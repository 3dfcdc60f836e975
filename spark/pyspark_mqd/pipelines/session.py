"""The Spark session of a command: Java is found, the connector's settings are set, `mqd` is known.

Under spark-submit the session takes the master and the settings of spark-submit; options of the
command win over them.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

from pyspark_mqd.pipelines.brokers import require_brokers
from pyspark_mqd.pipelines.checkpoint_owner import claim
from pyspark_mqd.pipelines.cli import DEFAULT_MASTER, Settings, signals
from pyspark_mqd.pipelines.java import prepare
from pyspark_mqd.pipelines.progress import jvm_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUIET = {
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}
SILENT = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.streaming",
    "org.apache.spark.sql.execution.datasources",
    "org.apache.spark.util.Utils",
)
"""Loggers of Spark that repeat the error of a query with its Java stack trace."""
LOCAL = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # A query that is stopped within foreachBatch: Spark searches the long message of the
    # interrupted call with a regular expression that recurses once a character.
    "spark.driver.extraJavaOptions": "-Xss32m",
}
EXACTLY_ONCE = {
    # A re-run of a micro-batch must give the same rows to the same task.
    "spark.sql.adaptive.streaming.stateless.enabled": "false",
}
ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}


def is_submitted(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether spark-submit started this process: it then holds the gateway to the JVM."""
    return "PYSPARK_GATEWAY_PORT" in environ


def is_merged(output: str) -> bool:
    """Whether progress would end up in JSON: spark-submit joins our two output streams."""
    return output == "json" and is_submitted()


def settings_for(
    settings: Settings, defaults: Mapping[str, str], *, submitted: bool
) -> dict[str, str]:
    """Every setting that the session is built with: the command's options win."""
    merged = {**QUIET, **defaults}
    master = settings.master or (None if submitted else DEFAULT_MASTER)
    if master is not None:
        merged["spark.master"] = master
        if master.startswith("local"):
            merged.update(LOCAL)
    return {**merged, **settings.conf}


@contextmanager
def session(
    settings: Settings,
    name: str,
    defaults: Mapping[str, str] | None = None,
    *,
    brokers: bool = True,
) -> Iterator[SparkSession]:
    """A session for the length of a block.

    With `brokers`, a command fails before Spark starts if they do not respond. So does one whose
    checkpoint is of another pipeline. Raises Failure, and JavaMissing where Spark has no Java.
    """
    if brokers:
        require_brokers(settings)
    if settings.checkpoint:
        claim(settings.checkpoint, name)
    submitted = is_submitted()
    if not submitted:
        prepare()
        if (settings.master or DEFAULT_MASTER).startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # or Spark warns of the host name
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    from pyspark_mqd import configure

    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(is_news)
    builder = configure(SparkSession.builder.appName(f"mqd-spark {name}"))
    for key, value in settings_for(settings, defaults or {}, submitted=submitted).items():
        builder = builder.config(key, value)
    spark: SparkSession | None = None
    try:
        with Launch() as launch, signals.held(launch.end):
            spark = builder.getOrCreate()
            signals.install()
        if not settings.verbose:
            silence(spark)
        register(spark)
        yield spark
    finally:
        stop(spark or SparkSession.getActiveSession())


class Launch:
    """The JVM that PySpark starts in the block, from its first moment.

    PySpark knows it only when its gateway responds, and would leave it behind after a signal. The
    JVM gets a process group of its own, so that SIGTERM to the command's group lets queries stop
    before the JVM ends. It ends with this process: its standard input is a pipe from here.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        java_gateway: Any = import_module("pyspark.java_gateway")
        self._popen = java_gateway.Popen
        java_gateway.Popen = self._start
        return self

    def __exit__(self, *_: object) -> None:
        java_gateway: Any = import_module("pyspark.java_gateway")
        java_gateway.Popen = self._popen

    def _start(self, *arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        if signals.arrived is not None:
            raise signals.arrived
        process: subprocess.Popen[bytes] = self._popen(*arguments, **options, process_group=0)
        self._process = process
        return process

    def end(self) -> None:
        """End the JVM: PySpark's call then fails, and a signal rises in its place."""
        if self._process is not None:
            self._process.terminate()


def silence(spark: SparkSession) -> None:
    """Hide the logs of errors that a command reports itself, in one sentence."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    log4j: Any = jvm.org.apache.logging.log4j
    for name in SILENT:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)


def is_news(record: logging.LogRecord) -> bool:
    """Not that a call to the JVM was interrupted: py4j logs a traceback of it."""
    return not str(record.msg).endswith("while sending command.")


def stop(spark: SparkSession | None) -> None:
    """Stop a session; an interruption may have ended the JVM, or the connection to it, before."""
    if spark is not None:
        with suppress(*jvm_errors()):
            spark.stop()


def register(spark: SparkSession) -> None:
    """Make the format `mqd` known where PySpark does not find it by itself: in a zip archive."""
    import pyspark_mqd

    if ".zip" in (pyspark_mqd.__file__ or ""):
        from pyspark_mqd import DefaultSource

        spark.dataSource.register(DefaultSource)
