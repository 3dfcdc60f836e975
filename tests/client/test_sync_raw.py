from __future__ import annotations

import subprocess
import sys

import pytest

from mqd.client.errors import ClientError, ConsumerClosed, ProducerClosed
from mqd.client.group_member import GroupMetadata
from mqd.client.sync import connect
from mqd.errors import ErrorCode
from mqd.protocol.batch import iterate_batches
from mqd.protocol.record_reader import iterate_records
from mqd.types import TopicPartition
from tests.client.fake import INIT_PRODUCER_ID
from tests.client.loopback import Loopback
from tests.client.test_raw_producer import Built, numbered
from tests.client.test_raw_transactions import keep
from tests.client.test_sync import served

__all__ = ["served"]
A0 = TopicPartition("a", 0)


def test_batches_out_and_in(served: Loopback) -> None:
    with connect(served.address) as client:
        client.admin.create_topic("a", 1)
        with client.raw_producer() as producer:
            first, *rest = numbered(0, 0, 100)
            producer.send("a", first)
            producer.send_all([("a", batch) for batch in rest])
            producer.flush()
            assert producer.producer == (1001, 0)
        with pytest.raises(ProducerClosed):
            producer.send("a", Built(0, b"x"))
        with client.range_reader(A0, 10, 90, bytes_max=400) as reader:
            found = [
                record.value
                for fetched in reader
                for position, _, _ in iterate_batches(fetched.data)
                for record in iterate_records(fetched.data, position)
                if fetched.start <= record.offset < fetched.next_offset
            ]
            assert reader.next() is None
        assert found == [b"%d" % number for number in range(10, 90)]
        with pytest.raises(ConsumerClosed):
            reader.next()
        with (
            pytest.raises(ClientError, match="out of range"),
            client.range_reader(A0, 200, 201) as reader,
        ):
            reader.next()


def test_transactions_are_prepared_and_ended(served: Loopback) -> None:
    served.inside(lambda: served.cluster.one.versions.update({INIT_PRODUCER_ID: (0, 6)}))
    with connect(served.address) as client:
        client.admin.create_topic("a", 1)
        with client.raw_producer(transactional_id="t", two_phase=True) as producer:
            for end in (producer.commit, producer.abort):
                producer.begin()
                producer.send("a", Built(0, b"x"))
                producer.send_offsets({A0: 5}, GroupMetadata("g"))
                end()
            producer.begin()
            producer.send("a", Built(0, b"y"))
            producer.flush()
            served.inside(lambda: served.cluster.one.script(INIT_PRODUCER_ID, keep))
            prepared = producer.prepare()
        ended = client.end_transaction(*prepared[:3], True)
        assert ended == (prepared.producer_id, prepared.producer_epoch + 1)
        with pytest.raises(ClientError) as info:
            client.end_transaction("t", prepared.producer_id, 0, True, timeout_s=0.5)
        assert info.value.code is ErrorCode.PRODUCER_FENCED
        with client.range_reader(A0, 0, 6, read_committed=True) as reader:
            (fetched,) = reader
            assert [aborted.first_offset for aborted in fetched.aborted] == [2]


@pytest.mark.slow
def test_neither_numpy_nor_pyarrow_is_imported() -> None:
    script = (
        "import sys, mqd.client.sync; print([name for name in ('numpy', 'pyarrow') if "
        "name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
