"""A partition that Apache Kafka 4.3.1 wrote (2,000 records, one batch a codec) opens here,
and stays as it was.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mqd.protocol.files import encode_clean_shutdown, encode_offset_checkpoint
from mqd.protocol.slices import all_slices
from mqd.types import TopicPartition
from tests.log.support import Harness

KAFKA = Path(__file__).parent / "kafka-4.3.1"
PARTITION = TopicPartition("c", 0)


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
async def test_kafkas_partition_opens_reads_and_appends(tmp_path: Path, clean: bool) -> None:
    shutil.copytree(KAFKA, tmp_path / "c-0")
    if clean:
        (tmp_path / ".kafka_cleanshutdown").write_bytes(encode_clean_shutdown(12))
    else:  # Kafka preallocates the indexes of an active segment
        for name, size in (("index", 10_485_760), ("timeindex", 10_485_756)):
            with (tmp_path / "c-0" / f"{0:020d}.{name}").open("r+b") as file:
                file.truncate(size)
    (tmp_path / "replication-offset-checkpoint").write_bytes(
        encode_offset_checkpoint({PARTITION: 2000})
    )
    harness = Harness(tmp_path)
    await harness.service.start()
    assert (
        harness.service.registry.clean_start is clean
        and not harness.service.offline
        and not harness.service.reports
    )
    log = harness.service.logs[PARTITION]
    assert (log.log_end_offset, log.checkpointed_high_watermark, log.epochs.entries()) == (
        2000,
        2000,
        [(0, 0)],
    )
    records = harness.read_all(log)
    assert [record.offset for record in records] == list(range(2000))
    assert all(
        record.value == b"%d" % (record.offset % 500) * 30 and record.headers == (("h", b"x"),)
        for record in records
    )
    assert [(entry.producer_id, entry.last_sequence) for entry in log.producers.entries()] == [
        (1, 499),
        (2, 499),
        (3, 499),
        (4, 499),
    ]
    lookup = harness.service.offset_for_timestamp(log, records[700].timestamp, 2000)
    found = all_slices(lookup)
    assert found is not None and found.offset <= 700
    await harness.service.close()
    for path in KAFKA.iterdir():
        mine = (tmp_path / "c-0" / path.name).read_bytes()
        assert mine == path.read_bytes() or (path.suffix == ".timeindex" and not clean), path.name
