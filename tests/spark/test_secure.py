"""Spark reads and writes through a listener with SASL; no plan and no log has the password."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from chaos.node import LOOPBACK, Node, free_ports
from pyspark_mqd.pipelines import lag

USER, PASSWORD = "alice", "alice-s3cret"
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required "


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The SASL listener of a node; it has a PLAINTEXT listener, too."""
    plain, secure = free_ports(2)
    options = (
        f"listeners=PLAINTEXT://{LOOPBACK}:{plain},X://{LOOPBACK}:{secure}",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,X:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms=PLAIN",
        f'listener.name.x.plain.sasl.jaas.config={JAAS}user_{USER}="{PASSWORD}";',
        "auto.create.topics.enable=true",
    )
    node = Node(tmp_path_factory.mktemp("secure"), options, port=plain)
    node.start()
    yield f"{LOOPBACK}:{secure}"
    node.stop()


def options(address: str, password: str = PASSWORD) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": address,
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": f'{JAAS}username="{USER}" password="{password}";',
    }


@pytest.mark.slow
def test_source_and_sink_log_in(
    spark: Any,
    address: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG, logger="pyspark_mqd")  # not py4j, which logs each call
    known = options(address)
    rows = spark.range(10).selectExpr("cast(id as string) as value")
    rows.write.format("mqd").options(**known, topic="a").mode("append").save()
    stream = (
        spark.readStream.format("mqd")
        .options(**known, subscribe="a", startingOffsets="earliest")
        .load()
    )
    query = (
        stream.writeStream.format("mqd")
        .options(**known, topic="b", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    read = spark.read.format("mqd").options(**known, subscribe="b").load()
    assert read.count() == 10
    read.explain("extended")
    stream.explain("extended")
    query.explain(True)
    shown = capfd.readouterr()
    assert "mqd" in shown.out
    assert PASSWORD not in shown.out + caplog.text + str(query.lastProgress)
    assert not any(
        PASSWORD.encode() in path.read_bytes()
        for path in (tmp_path / "checkpoint").rglob("*")
        if path.is_file()
    )


def test_a_wrong_password(spark: Any, address: str) -> None:
    with pytest.raises(Exception, match="refuse the connection") as caught:
        wrong = options(address, "wr0ng-password")
        spark.read.format("mqd").options(
            **wrong, subscribe="a", **{"fetchOffset.numRetries": "1"}
        ).load().count()
    assert "wr0ng-password" not in str(caught.value)


def test_pipelines_take_a_properties_file(spark: Any, address: str, tmp_path: Path) -> None:
    from click.testing import CliRunner

    file = tmp_path / "client.properties"
    lines = [
        f"{name.removeprefix('kafka.')}={value}\n"
        for name, value in options(address).items()
        if "bootstrap" not in name
    ]
    file.write_text("".join(lines))
    ran = CliRunner().invoke(
        lag.command, ["-b", address, "--command-config", str(file), "--group", "nobody"]
    )
    assert "refuse" not in ran.output and "closed the connection" not in ran.output, ran.output
