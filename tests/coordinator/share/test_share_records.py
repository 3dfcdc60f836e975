"""Records of share partitions: what is packed by hand equals the schema, byte for byte."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given, strategies as st

from mqd.coordinator.share import records
from mqd.coordinator.share.records import ShareSnapshot, ShareUpdate, batch_row, decode, encode
from mqd.share.ports import ShareKey
from mqd.share.record_states import Batch, RecordState

KEY = ShareKey("billing", UUID(int=7), 3)
OFFSETS = st.integers(0, 2**63 - 2)
STORED = [RecordState.AVAILABLE, RecordState.ACKNOWLEDGED, RecordState.ARCHIVED]
BATCHES = st.lists(
    st.builds(
        Batch,
        OFFSETS,
        OFFSETS,
        st.sampled_from(STORED),
        st.integers(0, 2**15 - 1),
        st.just(0) | st.integers(1, 2**62),
    ),
    max_size=200,
).map(tuple)


@given(BATCHES, st.booleans(), st.integers(-1, 2**31 - 1))
def test_packed_batches_are_those_of_the_schema(
    batches: tuple[Batch, ...], is_snapshot: bool, count: int
) -> None:
    value: ShareSnapshot | ShareUpdate
    if is_snapshot:
        value, found = ShareSnapshot(1, 2, 3, 4, count, 5, 6, batches), records._SNAPSHOT
    else:
        value, found = ShareUpdate(1, 3, 4, count, batches), records._UPDATE
    record = encode(KEY, value)
    fields = {name: getattr(value, name) for name in type(value).__slots__}
    fields["state_batches"] = [batch_row(one) for one in batches]
    assert record == found.encode(KEY._asdict(), fields, 0)
    assert decode(record) == (KEY, value)
