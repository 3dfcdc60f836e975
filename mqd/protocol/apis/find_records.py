"""FindRecords (key 32_004): the records with a key in one partition. Not in Kafka.

The partition's leader searches from `offset` on, or with `newest_first` from `offset` down, until
the response has `max_records` or `max_bytes` (one record may be larger), or the bounds of the
broker are reached. Then the client sends `next_offset` as the `offset` of its next request.
`is_complete` says that nothing is left.

Records are in the order of the search. A null value is a tombstone. Records that a consumer with
this isolation level would not receive are not found.
"""

from __future__ import annotations

from mqd.protocol.schema import (
    BOOLEAN,
    BYTES,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    TEXT,
    Api,
    array,
    field,
    message,
)

REQUEST = message(
    field("topic", STRING),
    field("partition_index", INT32),
    field("current_leader_epoch", INT32, default=-1),
    field("key", BYTES),
    # the first offset to search; with newest_first the one after the last. -1: the end of the log
    field("offset", INT64, default=-1),
    field("since", INT64, default=-(2**63)),  # smallest timestamp, milliseconds
    field("until", INT64, default=2**63 - 1),  # the timestamp to stop before
    field("newest_first", BOOLEAN),
    field("isolation_level", INT8),  # 0: up to the high watermark, 1: the last stable offset
    field("max_records", INT32, default=100),
    field("max_bytes", INT32, default=1 << 20),
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field("error_code", INT16),
    field("error_message", TEXT, nullable_since=0),
    field("leader_epoch", INT32, default=-1),
    field("high_watermark", INT64, default=-1),
    field("next_offset", INT64, default=-1),
    field("is_complete", BOOLEAN),
    field("scanned_bytes", INT64),
    field("segments_read", INT32),
    field("segments_filtered", INT32),  # with a key filter
    field("segments_unindexed", INT32),  # full ones that were read without a key filter
    field(
        "records",
        array(
            field("offset", INT64),
            field("timestamp", INT64),
            field("leader_epoch", INT32),
            field("value", BYTES, nullable_since=0),
            field("headers", array(field("name", BYTES), field("value", BYTES, nullable_since=0))),
        ),
    ),
)

API = Api(
    key=32_004,
    name="FindRecords",
    versions=(0, 0),
    advertised=(0, 0),
    flexible_from=0,
    request=REQUEST,
    response=RESPONSE,
)
