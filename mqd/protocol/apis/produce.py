"""Produce (key 0): appends record batches to partitions.

v3  record batch v2 and a transactional id. Kafka 4.0 removed v0 to v2, but still *advertises* them:
    without them librdkafka assumes a broker without compression (KAFKA-18659)
v4  may return KAFKA_STORAGE_ERROR
v5  the response has the log start offset
v7  batches may be compressed with zstd (KIP-110)
v8  the response names the invalid records of a rejected batch (KIP-467)
v9  flexible
v10 the response names the new leader and its address, tagged (KIP-951)
v11 may return TRANSACTION_ABORTABLE (KIP-890)
v12 adds its partitions to the transaction implicitly (KIP-890, second part)
v13 topics by id instead of name (KIP-516)
"""

from __future__ import annotations

from mqd.protocol.schema import (
    INT16,
    INT32,
    INT64,
    RECORDS,
    STRING,
    TEXT,
    UUID,
    Api,
    array,
    field,
    message,
)

REQUEST = message(
    field("transactional_id", STRING, default=None),
    field("acks", INT16),  # 0 none, 1 the leader, -1 all replicas in sync
    field("timeout_ms", INT32),
    field(
        "topic_data",
        array(
            field("name", STRING, until=12),
            field("topic_id", UUID, since=13),
            field(
                "partition_data",
                array(field("index", INT32), field("records", RECORDS, nullable_since=0)),
            ),
        ),
    ),
)

RESPONSE = message(
    field(
        "responses",
        array(
            field("name", STRING, until=12),
            field("topic_id", UUID, since=13),
            field(
                "partition_responses",
                array(
                    field("index", INT32),
                    field("error_code", INT16),
                    field("base_offset", INT64),
                    # -1 if the topic keeps the producer's timestamps
                    field("log_append_time_ms", INT64, default=-1),
                    field("log_start_offset", INT64, since=5, default=-1),
                    field(
                        "record_errors",
                        array(
                            field("batch_index", INT32),  # of the record in its batch
                            field("batch_index_error_message", TEXT, default=None),
                        ),
                        since=8,
                    ),
                    field("error_message", TEXT, since=8, default=None),
                    field(
                        "current_leader",
                        message(
                            field("leader_id", INT32, default=-1),
                            field("leader_epoch", INT32, default=-1),
                        ),
                        since=10,
                        tag=0,
                    ),
                ),
            ),
        ),
    ),
    field("throttle_time_ms", INT32),
    field(
        "node_endpoints",
        array(
            field("node_id", INT32),
            field("host", STRING),
            field("port", INT32),
            field("rack", STRING, default=None),
        ),
        since=10,
        tag=0,
    ),
)

API = Api(
    key=0,
    name="Produce",
    versions=(3, 13),
    advertised=(0, 13),
    flexible_from=9,
    request=REQUEST,
    response=RESPONSE,
)
