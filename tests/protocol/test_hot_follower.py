"""The follower's hand-written codecs and the declaration of Fetch v17 agree, also on
damaged bytes.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from hypothesis import given, strategies as st

from mqd.protocol import hot_follower as hot
from tests.protocol.test_hot_codecs import (
    FETCH,
    endpoints,
    endpoints_of,
    examples,
    int16,
    int32,
    int64,
    lists,
    mutated,
    mutations,
    small_blobs,
    uuids,
    verdict,
)

requested = st.tuples(int32, int32, int64, int32, int64, int32)
NAMES = (
    "partition",
    "current_leader_epoch",
    "fetch_offset",
    "last_fetched_epoch",
    "log_start_offset",
    "partition_max_bytes",
)


@examples
@given(
    numbers=st.tuples(
        st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), int32, int32, int32, int32, int32
    ),
    topics=lists(st.tuples(uuids, lists(requested))),
    forgotten=lists(st.tuples(uuids, lists(int32))),
)
def test_requests_are_written_alike(
    numbers: tuple[int, ...], topics: list[Any], forgotten: list[Any]
) -> None:
    names = (
        "replica_id",
        "replica_epoch",
        "max_wait_ms",
        "min_bytes",
        "max_bytes",
        "session_id",
        "session_epoch",
    )
    values = dict(zip(names, numbers, strict=True))
    expected = FETCH.encode_request(
        hot.VERSION,
        {
            **{name: value for name, value in values.items() if not name.startswith("replica")},
            "replica_state": {
                "replica_id": values["replica_id"],
                "replica_epoch": values["replica_epoch"],
            },
            "isolation_level": 0,
            "topics": [
                {
                    "topic_id": topic_id,
                    "partitions": [dict(zip(NAMES, one, strict=True)) for one in partitions],
                }
                for topic_id, partitions in topics
            ],
            "forgotten_topics_data": [
                {"topic_id": topic_id, "partitions": partitions}
                for topic_id, partitions in forgotten
            ],
            "rack_id": "",
        },
    )
    found = hot.encode_fetch_request(
        **values,
        topics=[(topic_id.bytes, partitions) for topic_id, partitions in topics],
        forgotten=[(topic_id.bytes, partitions) for topic_id, partitions in forgotten],
    )
    assert bytes(found) == bytes(expected)


epoch_ends = st.fixed_dictionaries({"epoch": st.integers(0, 2**31 - 1), "end_offset": int64})
row = st.fixed_dictionaries(
    {
        "partition_index": int32,
        "error_code": int16,
        "high_watermark": int64,
        "last_stable_offset": int64,
        "log_start_offset": int64,
        "aborted_transactions": st.none()
        | lists(st.fixed_dictionaries({"producer_id": int64, "first_offset": int64})),
        "preferred_read_replica": int32,
        "records": st.none() | small_blobs,
    },
    optional={
        "diverging_epoch": epoch_ends,
        "current_leader": st.fixed_dictionaries({"leader_id": int32, "leader_epoch": int32}),
        "snapshot_id": st.fixed_dictionaries({"end_offset": int64, "epoch": int32}),
    },
)
answers = st.fixed_dictionaries(
    {
        "throttle_time_ms": int32,
        "error_code": int16,
        "session_id": int32,
        "responses": lists(st.fixed_dictionaries({"topic_id": uuids, "partitions": lists(row)})),
        "node_endpoints": endpoints.map(endpoints_of),
    }
)


def as_hot(answer: Any) -> hot.FetchedTopics:
    def fetched(one: Any) -> hot.FetchedPartition:
        diverging = one.diverging_epoch
        known = diverging.epoch >= 0 or diverging.end_offset >= 0
        return hot.FetchedPartition(
            one.partition_index,
            one.error_code,
            one.high_watermark,
            one.log_start_offset,
            (diverging.epoch, diverging.end_offset) if known else None,
            memoryview(bytes(one.records or b"")),
        )

    return hot.FetchedTopics(
        answer.throttle_time_ms,
        answer.error_code,
        answer.session_id,
        [
            (topic.topic_id.bytes, [fetched(one) for one in topic.partitions])
            for topic in answer.responses
        ],
    )


@examples
@given(answer=answers, before=st.binary(max_size=5))
def test_responses_are_read_alike(answer: dict[str, Any], before: bytes) -> None:
    body = bytes(FETCH.encode_response(hot.VERSION, answer))
    expected = as_hot(FETCH.decode_response(hot.VERSION, body))
    assert hot.decode_fetch_response(memoryview(before + body), len(before)) == expected


@examples
@given(answer=answers, changes=mutations)
def test_damaged_responses_are_judged_alike(
    answer: dict[str, Any], changes: list[tuple[str, float, int]]
) -> None:
    body = mutated(bytes(FETCH.encode_response(hot.VERSION, answer)), changes)
    expected = verdict(lambda: as_hot(FETCH.decode_response(hot.VERSION, body)))
    assert verdict(hot.decode_fetch_response, memoryview(body), 0) == expected


def test_records_are_a_view_into_the_frame() -> None:
    rows = [
        {
            "partition_index": 3,
            "error_code": 0,
            "high_watermark": 5,
            "log_start_offset": 0,
            "records": b"z" * 1000,
        }
    ]
    answer = {
        "throttle_time_ms": 0,
        "error_code": 0,
        "session_id": 7,
        "responses": [{"topic_id": UUID(int=9), "partitions": rows}],
    }
    frame = memoryview(bytes(FETCH.encode_response(hot.VERSION, answer)))
    decoded = hot.decode_fetch_response(frame, 0)
    records = decoded.topics[0][1][0].records
    assert records.obj is frame.obj and bytes(records) == b"z" * 1000
