"""The hand-written codecs and the declarations agree: on every version, in both directions, and on
damaged bytes.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given, settings, strategies as st

from mqd import limits
from mqd.errors import ProtocolError
from mqd.protocol import hot_fetch_request, hot_fetch_response, hot_produce
from mqd.protocol.apis import by_name
from mqd.protocol.schema import Api, encode_response_header

PRODUCE, FETCH = by_name("Produce"), by_name("Fetch")
PRODUCE_VERSIONS = range(3, 14)
FETCH_VERSIONS = range(4, 19)

int16 = st.integers(-(2**15), 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
text = st.text(max_size=12) | st.sampled_from(["t", "orders", "x" * 126, "x" * 127, "x" * 300])
uuids = st.integers(0, 2**128 - 1).map(lambda number: UUID(int=number))
blobs = st.binary(max_size=40) | st.sampled_from(
    [b"r" * 126, b"r" * 127, b"r" * 128, b"r" * 20_000]
)
small_blobs = st.binary(max_size=40) | st.just(b"r" * 200)
# for each version; neighbours share most of their code
examples = settings(deadline=None, max_examples=15)


class Elsewhere(NamedTuple):
    """Records that are not in memory: only their size is known. A tuple, as a FileRange is."""

    content: bytes
    position: int

    @property
    def size(self) -> int:
        return len(self.content)


def lists(element: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(element, max_size=3)


# -- Produce requests


def produce_requests(records: st.SearchStrategy[bytes]) -> st.SearchStrategy[dict[str, Any]]:
    partition = st.fixed_dictionaries({"index": int32, "records": st.none() | records})
    topic = st.fixed_dictionaries(
        {"name": text, "topic_id": uuids, "partition_data": lists(partition)}
    )
    one = st.fixed_dictionaries(
        {
            "name": text,
            "topic_id": uuids,
            "partition_data": st.lists(partition, min_size=1, max_size=1),
        }
    )  # the fast path's shape
    return st.fixed_dictionaries(
        {
            "transactional_id": st.none() | text,
            "acks": int16,
            "timeout_ms": int32,
            "topic_data": st.lists(one, min_size=1, max_size=1) | lists(topic),
        }
    )


def produce_as_hot(request: Any, version: int) -> tuple[Any, ...]:
    """The declaration's request in the form of the hand-written codec, records as bytes."""
    transactional_id = request.transactional_id
    return (
        None if transactional_id is None else transactional_id.encode(),
        request.acks,
        request.timeout_ms,
        [
            (
                topic.name.encode() if version < 13 else None,
                topic.topic_id.bytes if version >= 13 else None,
                [
                    (part["index"], None if part.records is None else bytes(part.records))
                    for part in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ],
    )


def decode_produce(buffer: bytes, position: int, end: int, version: int) -> tuple[Any, ...]:
    transactional_id, acks, timeout_ms, topics = hot_produce.decode_produce_request(
        memoryview(buffer), position, end, version
    )
    for _, _, partitions in topics:
        for _, start, stop in partitions:
            assert (start == stop == -1) or position <= start <= stop <= end
    shown = [
        (
            name,
            topic_id,
            [
                (index, None if start < 0 else buffer[start:stop])
                for index, start, stop in partitions
            ],
        )
        for name, topic_id, partitions in topics
    ]
    return transactional_id, acks, timeout_ms, shown


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@examples
@given(request=produce_requests(blobs), before=st.binary(max_size=5), after=st.binary(max_size=5))
def test_produce_requests_are_read_alike(
    version: int, request: dict[str, Any], before: bytes, after: bytes
) -> None:
    body = PRODUCE.encode_request(version, request)
    buffer = before + body + after
    expected = produce_as_hot(PRODUCE.decode_request(version, body), version)
    assert decode_produce(buffer, len(before), len(before) + len(body), version) == expected


def test_lengths_of_records_on_both_sides_of_each_varint_byte() -> None:
    for size in (0, 126, 127, 128, 2**14 - 2, 2**14 - 1, 2**21 - 2, 2**21 - 1, 2**21):
        for version in (9, 13):
            request = {
                "acks": 1,
                "topic_data": [
                    {"name": "t", "partition_data": [{"index": 3, "records": bytes(size)}]}
                ],
            }
            body = PRODUCE.encode_request(version, request)
            _, _, _, [(_, _, partitions)] = hot_produce.decode_produce_request(
                body, 0, len(body), version
            )
            assert partitions == [(3, len(body) - 3 - size, len(body) - 3)]


def verdict(decode: Any, *arguments: Any) -> Any:
    """The result of a decoder: a value, or that the bytes are not a message.

    No other exception may leave it.
    """
    try:
        return decode(*arguments)
    except ProtocolError:
        return ProtocolError


mutations = st.lists(
    st.tuples(
        st.sampled_from(["set", "insert", "remove", "cut"]),
        st.floats(0, 1, exclude_max=True),
        st.integers(0, 255),
    ),
    min_size=1,
    max_size=3,
)


def mutated(body: bytes, changes: list[tuple[str, float, int]]) -> bytes:
    out = bytearray(body)
    for kind, where, byte in changes:
        if not out:
            break
        index = int(where * len(out))
        if kind == "set":
            out[index] = byte
        elif kind == "insert":
            out.insert(index, byte)
        elif kind == "remove":
            del out[index]
        else:
            del out[index:]
    return bytes(out)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@examples
@given(request=produce_requests(small_blobs), changes=mutations, after=st.binary(max_size=8))
def test_damaged_produce_requests_are_judged_alike(
    version: int, request: dict[str, Any], changes: list[tuple[str, float, int]], after: bytes
) -> None:
    body = mutated(PRODUCE.encode_request(version, request), changes)
    expected = verdict(lambda: produce_as_hot(PRODUCE.decode_request(version, body), version))
    assert verdict(decode_produce, body + after, 0, len(body), version) == expected


# -- Fetch requests


def fetch_requests() -> st.SearchStrategy[dict[str, Any]]:
    partition = st.fixed_dictionaries(
        {
            "partition": int32,
            "current_leader_epoch": int32,
            "fetch_offset": int64,
            "last_fetched_epoch": int32,
            "log_start_offset": int64,
            "partition_max_bytes": int32,
        },
        optional={"replica_directory_id": uuids, "high_watermark": int64},
    )
    topic = st.fixed_dictionaries(
        {"topic": text, "topic_id": uuids, "partitions": lists(partition)}
    )
    forgotten = st.fixed_dictionaries(
        {"topic": text, "topic_id": uuids, "partitions": lists(int32)}
    )
    return st.fixed_dictionaries(
        {
            "replica_id": int32,
            "max_wait_ms": int32,
            "min_bytes": int32,
            "max_bytes": int32,
            "isolation_level": st.integers(-128, 127),
            "session_id": int32,
            "session_epoch": int32,
            "topics": lists(topic),
            "forgotten_topics_data": lists(forgotten),
            "rack_id": text,
        },
        optional={
            "cluster_id": text,
            "replica_state": st.fixed_dictionaries({"replica_id": int32, "replica_epoch": int64}),
        },
    )


def fetch_as_hot(request: Any, version: int) -> hot_fetch_request.FetchRequest:
    def names(topic: Any) -> tuple[bytes | None, bytes | None]:
        return (topic.topic.encode(), None) if version < 13 else (None, topic.topic_id.bytes)

    return hot_fetch_request.FetchRequest(
        request.replica_id if version < 15 else request.replica_state.replica_id,
        request.replica_state.replica_epoch,
        request.max_wait_ms,
        request.min_bytes,
        request.max_bytes,
        request.isolation_level,
        request.session_id,
        request.session_epoch,
        [
            (
                *names(topic),
                [
                    hot_fetch_request.FetchPartition(
                        part.partition,
                        part.current_leader_epoch,
                        part.fetch_offset,
                        part.last_fetched_epoch,
                        part.log_start_offset,
                        part.partition_max_bytes,
                        part.replica_directory_id.bytes,
                        part.high_watermark,
                    )
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ],
        [(*names(topic), list(topic.partitions)) for topic in request.forgotten_topics_data],
        request.rack_id.encode(),
        None if request.cluster_id is None else request.cluster_id.encode(),
    )


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@examples
@given(request=fetch_requests(), before=st.binary(max_size=5), after=st.binary(max_size=5))
def test_fetch_requests_are_read_alike(
    version: int, request: dict[str, Any], before: bytes, after: bytes
) -> None:
    body = FETCH.encode_request(version, request)
    expected = fetch_as_hot(FETCH.decode_request(version, body), version)
    buffer = memoryview(before + body + after)
    assert (
        hot_fetch_request.decode_fetch_request(
            buffer, len(before), len(before) + len(body), version
        )
        == expected
    )


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@examples
@given(request=fetch_requests(), changes=mutations, after=st.binary(max_size=8))
def test_damaged_fetch_requests_are_judged_alike(
    version: int, request: dict[str, Any], changes: list[tuple[str, float, int]], after: bytes
) -> None:
    body = mutated(FETCH.encode_request(version, request), changes)
    expected = verdict(lambda: fetch_as_hot(FETCH.decode_request(version, body), version))
    assert (
        verdict(
            hot_fetch_request.decode_fetch_request, memoryview(body + after), 0, len(body), version
        )
        == expected
    )


def produce_bytes(
    name: bytes = b"\x02t",
    partitions: bytes = b"\x02",
    records: bytes = b"\x04abc",
    tail: bytes = b"\0\0\0",
    absent: bytes = b"\0",
) -> bytes:
    """A Produce v9 body, piece by piece: null transactional id, acks 1, one topic, partition 0."""
    return absent + b"\0\x01\0\0\x75\x30\x02" + name + partitions + bytes(4) + records + tail


@pytest.mark.parametrize(
    ("body", "accepted"),
    [
        (produce_bytes(), True),
        (produce_bytes(name=b"\x03\xc3\xa9"), True),
        (produce_bytes(name=b"\x03\xc3\x28"), False),  # not UTF-8
        (produce_bytes(name=b"\x01"), True),  # empty
        (produce_bytes(name=b"\x00"), False),  # null
        (produce_bytes(name=b"\x82\x00t"), True),  # a length of more bytes than it needs
        (produce_bytes(name=b"\x80\x80\x02" + b"t" * 32_767), True),
        (produce_bytes(name=b"\x81\x80\x02" + b"t" * 32_768), False),  # longer than any string
        (produce_bytes(partitions=b"\x03"), False),  # two partitions, of which one is there
        (produce_bytes(partitions=b"\x00"), False),  # null
        (produce_bytes(records=b"\x00"), True),  # null
        (produce_bytes(records=b"\x84\x80\x80\x80\x00abc"), True),  # five bytes of length
        (produce_bytes(records=b"\x84\x80\x80\x80\x10abc"), False),  # more than 32 bits
        (produce_bytes(records=b"\x84\x80\x80\x80\x80\x00abc"), False),  # six bytes
        (produce_bytes(records=b"\x05abc"), False),
        (produce_bytes(tail=b"\0\0\0\0"), True),  # a byte too many: ignored, as Apache Kafka does
        (produce_bytes(tail=b"\0\0"), False),
        (produce_bytes(tail=b"\x01\x07\x02ab\0\0"), True),  # an unknown tag
        (produce_bytes(tail=b"\0\0\x02\x07\x00\x09\x01a"), True),
        (produce_bytes(tail=b"\0\0\x02\x07\x00\x07\x01a"), False),  # the same tag twice
        (produce_bytes(tail=b"\0\0\x02\x09\x00\x07\x01a"), False),  # tags that do not ascend
        (produce_bytes(tail=b"\0\0\x01\xff\xff\xff\xff\x0f\x00"), True),  # the largest tag
        (produce_bytes(tail=b"\0\0\x01\xff\xff\xff\xff\x10\x00"), False),  # one above it
        (produce_bytes(tail=b"\0\0\xff\xff\xff\x7f"), False),  # millions of tags
        (produce_bytes(absent=b"\x01"), True),  # an empty transactional id
        (produce_bytes(absent=b"\x02\xff"), False),
    ],
)
def test_edges_of_a_produce_request(body: bytes, accepted: bool) -> None:
    expected = verdict(lambda: produce_as_hot(PRODUCE.decode_request(9, body), 9))
    assert (expected is not ProtocolError) == accepted
    for behind in (b"", b"\0" * 8):
        assert verdict(decode_produce, body + behind, 0, len(body), 9) == expected


@pytest.mark.parametrize(
    ("version", "tagged"),
    [
        (17, b"\x01\x00\x10" + bytes(range(16))),
        (17, b"\x01\x00\x0f" + bytes(range(15))),
        (17, b"\x01\x00\x11" + bytes(range(17))),
        (16, b"\x01\x00\x02ab"),  # unknown so far
        (17, b"\x01\x01\x02ab"),  # unknown so far
        (18, b"\x01\x01\x02ab"),
        (18, b"\x01\x01\x08" + bytes(range(8))),
        (18, b"\x01\x01\x09" + bytes(range(9))),
        (18, b"\x02\x01\x08" + bytes(range(8)) + b"\x00\x10" + bytes(range(16))),
    ],
)
def test_edges_of_a_fetched_partitions_tagged_fields(version: int, tagged: bytes) -> None:
    head = bytes(13) + bytes(8) + b"\x02" + bytes(range(16)) + b"\x02" + bytes(range(32))
    body = head + tagged + b"\0" + b"\x01" + b"\x01" + b"\0"
    expected = verdict(lambda: fetch_as_hot(FETCH.decode_request(version, body), version))
    assert verdict(hot_fetch_request.decode_fetch_request, body, 0, len(body), version) == expected


@pytest.mark.parametrize(
    ("version", "tagged"),
    [
        (12, b"\x01\x00\x02\x02c"),
        (12, b"\x01\x00\x01\x00"),  # a null cluster id
        (12, b"\x01\x00\x03\x02cc"),  # a byte too many in it
        (14, b"\x01\x01\x02ab"),  # unknown so far
        (15, b"\x01\x01\x02ab"),
        (15, b"\x01\x01\x0d" + bytes(range(12)) + b"\0"),
        (15, b"\x01\x01\x0c" + bytes(range(12))),
        (15, b"\x01\x01\x10" + bytes(range(12)) + b"\x01\x05\x01x"),
    ],
)
def test_edges_of_a_fetchs_tagged_fields(version: int, tagged: bytes) -> None:
    body = bytes(17 if version < 15 else 13) + bytes(8) + b"\x01\x01\x01" + tagged
    expected = verdict(lambda: fetch_as_hot(FETCH.decode_request(version, body), version))
    assert verdict(hot_fetch_request.decode_fetch_request, body, 0, len(body), version) == expected


@pytest.mark.parametrize(
    ("api", "versions"), [(PRODUCE, PRODUCE_VERSIONS), (FETCH, FETCH_VERSIONS)]
)
def test_every_prefix_of_a_request_is_refused(api: Api, versions: range) -> None:
    partition = {"index": 1, "records": b"abc", "partition": 1, "fetch_offset": 5}
    topic = {"name": "t", "topic": "t", "partition_data": [partition], "partitions": [partition]}
    for version in versions:
        body = api.encode_request(version, {"topic_data": [topic], "topics": [topic]})
        decode: Any = (
            hot_produce.decode_produce_request
            if api is PRODUCE
            else hot_fetch_request.decode_fetch_request
        )
        decode(body, 0, len(body), version)
        for end in range(len(body)):
            with pytest.raises(ProtocolError):
                decode(body, 0, end, version)  # the rest lies behind `end`
            with pytest.raises(ProtocolError):
                decode(body[:end], 0, end, version)


def test_more_elements_in_all_than_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REQUEST_ELEMENTS_MAX", 5)
    topic = {"name": "t", "partition_data": [{"index": 1, "records": b""}] * 2}
    for version in (8, 9):
        for topics, accepted in (([topic], True), ([topic, topic], False)):
            body = PRODUCE.encode_request(version, {"topic_data": topics})
            assert (
                verdict(hot_produce.decode_produce_request, body, 0, len(body), version)
                is not ProtocolError
            ) == accepted
    part = {"partition": 1, "fetch_offset": 1}
    fetch = {
        "topics": [{"topic": "t", "partitions": [part]}],
        "forgotten_topics_data": [{"topic": "t", "partitions": [1, 2]}],
    }
    for version in (11, 12):
        body = FETCH.encode_request(version, fetch)
        hot_fetch_request.decode_fetch_request(body, 0, len(body), version)
        body = FETCH.encode_request(
            version, {**fetch, "forgotten_topics_data": [{"topic": "t", "partitions": [1, 2, 3]}]}
        )
        assert (
            verdict(hot_fetch_request.decode_fetch_request, body, 0, len(body), version)
            is ProtocolError
        )


# -- responses

endpoints = lists(st.tuples(int32, text, int32, st.none() | text))
pair32 = st.tuples(int32, int32)


def endpoints_of(rows: list[tuple[int, str, int, str | None]]) -> list[dict[str, Any]]:
    return [
        {"node_id": node_id, "host": host, "port": port, "rack": rack}
        for node_id, host, port, rack in rows
    ]


def framed(api: Api, version: int, correlation_id: int, response: dict[str, Any]) -> bytes:
    body = encode_response_header(api, version, correlation_id) + api.encode_response(
        version, response
    )
    return len(body).to_bytes(4, "big") + body


produce_row = st.tuples(int32, int16, int64, int64, int64, st.none() | text)
produce_rows = (
    produce_row
    | st.tuples(produce_row, st.none() | pair32).map(lambda pair: (*pair[0], pair[1]))
    | st.tuples(produce_row, st.none() | pair32, lists(st.tuples(int32, st.none() | text))).map(
        lambda three: (*three[0], *three[1:])
    )
)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@examples
@given(
    correlation_id=int32,
    topics=st.lists(
        st.tuples(text, uuids, st.lists(produce_row, min_size=1, max_size=1)),
        min_size=1,
        max_size=1,
    )
    | lists(st.tuples(text, uuids, lists(produce_rows))),
    throttle_ms=int32,
    nodes=endpoints,
    good=st.booleans(),
)
def test_produce_responses_are_written_alike(
    version: int,
    correlation_id: int,
    topics: list[Any],
    throttle_ms: int,
    nodes: list[Any],
    good: bool,
) -> None:
    if good:  # what the fast path is for
        topics = [
            (name, topic_id, [(row[0], 0, *row[2:5], None) for row in rows])
            for name, topic_id, rows in topics
        ]
        nodes = []
    expected = framed(
        PRODUCE,
        version,
        correlation_id,
        {
            "responses": [
                {
                    "name": name,
                    "topic_id": topic_id,
                    "partition_responses": [
                        {
                            "index": row[0],
                            "error_code": row[1],
                            "base_offset": row[2],
                            "log_append_time_ms": row[3],
                            "log_start_offset": row[4],
                            "error_message": row[5],
                            **(
                                {
                                    "current_leader": {
                                        "leader_id": row[6][0],
                                        "leader_epoch": row[6][1],
                                    }
                                }
                                if len(row) > 6 and row[6] is not None
                                else {}
                            ),
                            "record_errors": [
                                {"batch_index": index, "batch_index_error_message": message}
                                for index, message in (row[7] if len(row) > 7 else ())
                            ],
                        }
                        for row in rows
                    ],
                }
                for name, topic_id, rows in topics
            ],
            "throttle_time_ms": throttle_ms,
            "node_endpoints": endpoints_of(nodes),
        },
    )
    shown = [(name.encode(), topic_id.bytes, rows) for name, topic_id, rows in topics]
    assert (
        hot_produce.encode_produce_response(version, correlation_id, shown, throttle_ms, nodes)
        == expected
    )


@pytest.mark.parametrize("version", [9, 10, 13])
@pytest.mark.parametrize(
    "row",
    [
        (0, 0, 5, -1, 0, None),
        (0, 6, -1, -1, -1, None),
        (0, 0, 5, -1, 0, "a message beside a success"),
        (0, 6, -1, -1, -1, None, (2, 7)),
        (0, 6, -1, -1, -1, None, (-1, -1)),  # the default: not on the wire
        (0, 6, -1, -1, -1, None, None),
    ],
)
def test_edges_of_a_produce_response(version: int, row: tuple[Any, ...]) -> None:
    partition = dict(
        zip(
            (
                "index",
                "error_code",
                "base_offset",
                "log_append_time_ms",
                "log_start_offset",
                "error_message",
            ),
            row,
        )
    )
    if len(row) > 6 and row[6] is not None:
        partition["current_leader"] = {"leader_id": row[6][0], "leader_epoch": row[6][1]}
    response = {
        "responses": [{"name": "t", "topic_id": UUID(int=9), "partition_responses": [partition]}],
        "throttle_time_ms": 3,
    }
    assert hot_produce.encode_produce_response(
        version, 7, [(b"t", UUID(int=9).bytes, [row])], 3
    ) == framed(PRODUCE, version, 7, response)


def test_an_error_message_longer_than_a_string_is_cut() -> None:
    for version in (8, 9):
        frame = hot_produce.encode_produce_response(
            version, 1, [(b"t", None, [(0, 87, -1, -1, -1, "é" * 40_000)])]
        )
        body = frame[8:] if version < 9 else frame[9:]
        message = (
            PRODUCE.decode_response(version, body).responses[0].partition_responses[0].error_message
        )
        assert message == "é" * (limits.STRING_BYTES_MAX // 2)


record_part = (
    st.binary(max_size=20)
    | st.binary(max_size=20).map(bytearray)
    | st.binary(max_size=20).map(lambda data: Elsewhere(data, 7))
)
fetch_row = st.tuples(
    int32,
    int16,
    int64,
    int64,
    int64,
    st.none() | lists(st.tuples(int64, int64)),
    int32,
    st.none() | lists(record_part),
)
fetch_rows = fetch_row | st.tuples(
    fetch_row,
    st.none() | st.tuples(int32, int64),
    st.none() | pair32,
    st.none() | st.tuples(int64, int32),
).map(lambda parts: (*parts[0], *parts[1:]))


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@examples
@given(
    numbers=st.tuples(int32, int32, int16, int32),
    topics=lists(st.tuples(text, uuids, lists(fetch_rows))),
    nodes=endpoints,
)
def test_fetch_responses_are_written_alike(
    version: int, numbers: tuple[int, int, int, int], topics: list[Any], nodes: list[Any]
) -> None:
    correlation_id, throttle_ms, error_code, session_id = numbers

    def tagged(row: Any) -> dict[str, Any]:
        names = (
            ("diverging_epoch", "epoch", "end_offset"),
            ("current_leader", "leader_id", "leader_epoch"),
            ("snapshot_id", "end_offset", "epoch"),
        )
        return {
            name: {first: pair[0], second: pair[1]}
            for (name, first, second), pair in zip(names, row[8:])
            if pair is not None
        }

    def content(part: Any) -> bytes:
        return part.content if isinstance(part, Elsewhere) else bytes(part)

    expected = framed(
        FETCH,
        version,
        correlation_id,
        {
            "throttle_time_ms": throttle_ms,
            "error_code": error_code,
            "session_id": session_id,
            "responses": [
                {
                    "topic": name,
                    "topic_id": topic_id,
                    "partitions": [
                        {
                            "partition_index": row[0],
                            "error_code": row[1],
                            "high_watermark": row[2],
                            "last_stable_offset": row[3],
                            "log_start_offset": row[4],
                            "aborted_transactions": None
                            if row[5] is None
                            else [
                                {"producer_id": producer_id, "first_offset": offset}
                                for producer_id, offset in row[5]
                            ],
                            "preferred_read_replica": row[6],
                            "records": None if row[7] is None else b"".join(map(content, row[7])),
                            **tagged(row),
                        }
                        for row in rows
                    ],
                }
                for name, topic_id, rows in topics
            ],
            "node_endpoints": endpoints_of(nodes),
        },
    )
    shown = [(name.encode(), topic_id.bytes, rows) for name, topic_id, rows in topics]
    parts = hot_fetch_response.encode_fetch_response_parts(
        version, correlation_id, throttle_ms, error_code, session_id, shown, nodes
    )
    assert b"".join(map(content, parts)) == expected


def test_records_of_a_fetch_are_passed_through_and_not_copied() -> None:
    file_range = Elsewhere(b"z" * 100, 0)
    rows = [(0, 0, 10, 10, 0, None, -1, [file_range])]
    for version in FETCH_VERSIONS:
        parts = hot_fetch_response.encode_fetch_response_parts(
            version, 1, 0, 0, 0, [(b"t", bytes(16), rows)]
        )
        assert sum(part is file_range for part in parts) == 1
        assert all(part for part in parts)


# -- slices


def slices_of(work: Any) -> list[int]:
    """What a generator yields until its end."""
    return list(work)


@pytest.mark.parametrize("version", [8, 9, 11, 12])
def test_requests_larger_than_a_slice_are_not_decoded_at_once(version: int) -> None:
    most = limits.DECODED_AT_ONCE_ROWS
    api, key, array = (
        (PRODUCE, "topic_data", "partition_data")
        if version < 11
        else (FETCH, "topics", "partitions")
    )
    for shape in ("partitions", "topics"):
        for rows, at_once in ((most - 2, True), (most, False), (4 * most, False)):
            row = {"index": 1, "records": b"x" * 200, "partition": 1, "fetch_offset": 5}
            names = range(1 if shape == "partitions" else rows)
            topics = [
                {
                    "name": f"t{name}",
                    "topic": f"t{name}",
                    array: [row] * rows if shape == "partitions" else [],
                }
                for name in names
            ]
            body = api.encode_request(version, {key: topics})
            if version < 11:
                found: Any = hot_produce.decode_produce_at_once(body, 0, len(body), version)
                work: Any = hot_produce.decode_produce_in_slices(body, 0, len(body), version)
            else:
                found = hot_fetch_request.decode_fetch_at_once(body, 0, len(body), version)
                work = hot_fetch_request.decode_fetch_in_slices(body, 0, len(body), version)
            slices = slices_of(work)
            assert (found is not None) == at_once, (shape, rows)
            assert all(size <= most for size in slices) and (not slices) == at_once


def test_tagged_fields_count_as_work() -> None:
    tags = b"\xe8\x07" + b"".join(bytes((tag & 127 | 128, tag >> 7, 0)) for tag in range(1000))
    row = bytes(4) + b"\x01"
    body = b"\0\0\x01" + bytes(4) + b"\x02\x02t" + bytes((51,)) + (row + tags) * 50 + b"\0\0"
    work = hot_produce.decode_produce_in_slices(body, 0, len(body), 9)
    assert len(slices_of(work)) >= 3
