"""atomic-batch where the brokers have two-phase commit disabled: one error, on the driver."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import BinaryType, StructField, StructType

from chaos.ensemble import ensemble
from pyspark_mqd import sink
from pyspark_mqd.errors import ConnectorError

SCHEMA = StructType([StructField("value", BinaryType())])


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_driver_refuses_and_names_the_setting(tmp_path: Path) -> None:
    nodes = ensemble("mqd", tmp_path, 1, options=())
    try:
        nodes.start()
        options = {
            "kafka.bootstrap.servers": nodes.bootstrap,
            "topic": "t",
            "deliveryGuarantee": "atomic-batch",
        }
        for make in (sink.batch_writer, sink.stream_writer):
            with pytest.raises(
                ConnectorError,
                match=r"Start every broker with transaction\.two\.phase\.commit\.enable=true",
            ):
                make(options, SCHEMA, False)
    finally:
        nodes.kill()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_brokers_that_have_it_are_accepted(tmp_path: Path) -> None:
    enabled = ("transaction.two.phase.commit.enable=true",)
    nodes = ensemble("mqd", tmp_path, 1, options=enabled)
    try:
        nodes.start()
        options = {
            "kafka.bootstrap.servers": nodes.bootstrap,
            "topic": "t",
            "deliveryGuarantee": "atomic-batch",
        }
        assert type(sink.batch_writer(options, SCHEMA, False)).__name__ == "AtomicWriter"
    finally:
        nodes.kill()
