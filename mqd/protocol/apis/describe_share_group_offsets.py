"""DescribeShareGroupOffsets (key 90): the start offsets of share groups (KIP-932).

v1  the lag (KIP-1226)

mqd has tagged fields of its own: the response to a request with `unaccepted_wanted` counts the
records that no member accepted. Apache Kafka skips unknown tags (KIP-482).
"""

from __future__ import annotations

from mqd.protocol.schema import (
    BOOLEAN,
    INT16,
    INT32,
    INT64,
    STRING,
    TEXT,
    UUID,
    Api,
    array,
    field,
    message,
)

REQUEST = message(
    field(
        "groups",
        array(
            field("group_id", STRING),
            # null: all topics of the group
            field(
                "topics",
                array(field("topic_name", STRING), field("partitions", array(INT32))),
                nullable_since=0,
            ),
        ),
    ),
    field("unaccepted_wanted", BOOLEAN, tag=10_000, default=False),
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field(
        "groups",
        array(
            field("group_id", STRING),
            field(
                "topics",
                array(
                    field("topic_name", STRING),
                    field("topic_id", UUID),
                    field(
                        "partitions",
                        array(
                            field("partition_index", INT32),
                            field("start_offset", INT64),  # -1: not known yet
                            field("leader_epoch", INT32),
                            field("lag", INT64, since=1, default=-1),
                            field("error_code", INT16),
                            field("error_message", TEXT, nullable_since=0, default=None),
                            # since the leader began to lead; -1: unknown, or not requested
                            field("expired", INT64, tag=10_000, default=-1),
                            # without a dead letter
                            field("given_up", INT64, tag=10_001, default=-1),
                        ),
                    ),
                ),
            ),
            field("error_code", INT16),
            field("error_message", TEXT, nullable_since=0, default=None),
        ),
    ),
)

API = Api(
    key=90,
    name="DescribeShareGroupOffsets",
    versions=(0, 1),
    advertised=(0, 1),
    flexible_from=0,
    request=REQUEST,
    response=RESPONSE,
)
