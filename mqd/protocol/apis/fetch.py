"""Fetch (key 1): reads record batches. Consumers, followers and Raft voters send it.

v4  isolation level, last stable offset and aborted transactions, for read_committed consumers
v5  log start offsets, the follower's in the request and the leader's in the response
v6  may return KAFKA_STORAGE_ERROR
v7  fetch sessions: later requests name only changed partitions (KIP-227)
v9  the leader epoch that the client knows (KIP-320)
v10 batches may be compressed with zstd (KIP-110)
v11 rack of the consumer, preferred replica to read from (KIP-392)
v12 flexible; truncation by epoch within the fetch (KIP-595)
v13 topics by id instead of name (KIP-516)
v14 may return OFFSET_MOVED_TO_TIERED_STORAGE (KIP-405)
v15 the replica id moves into a tagged structure, with the replica's epoch (KIP-903)
v16 the response has the addresses of new leaders, tagged (KIP-951)
v17 directory id of the fetching replica, tagged (KIP-853)
v18 high watermark that the replica knows, tagged (KIP-1166)
"""

from __future__ import annotations

from mqd.protocol.schema import (
    INT8,
    INT16,
    INT32,
    INT32_MAX,
    INT64,
    INT64_MAX,
    RECORDS,
    STRING,
    UUID,
    Api,
    array,
    field,
    message,
)

REQUEST = message(
    field("cluster_id", STRING, since=12, tag=0, default=None),
    field("replica_id", INT32, until=14, default=-1),  # -1: a consumer
    field(
        "replica_state",
        message(field("replica_id", INT32, default=-1), field("replica_epoch", INT64, default=-1)),
        since=15,
        tag=1,
    ),
    field("max_wait_ms", INT32),
    field("min_bytes", INT32),  # with fewer bytes, wait for max_wait_ms
    field("max_bytes", INT32, default=INT32_MAX),
    field("isolation_level", INT8),  # 0 all records, 1 only committed ones
    field("session_id", INT32, since=7),  # 0: none yet
    field("session_epoch", INT32, since=7, default=-1),  # 0 opens a session, -1 closes it
    field(
        "topics",
        array(
            field("topic", STRING, until=12),
            field("topic_id", UUID, since=13),
            field(
                "partitions",
                array(
                    field("partition", INT32),
                    field("current_leader_epoch", INT32, since=9, default=-1),  # -1: do not compare
                    field("fetch_offset", INT64),
                    field("last_fetched_epoch", INT32, since=12, default=-1),
                    # of the follower's log; -1 for a consumer
                    field("log_start_offset", INT64, since=5, default=-1),
                    field("partition_max_bytes", INT32),
                    field("replica_directory_id", UUID, since=17, tag=0),
                    # -1: the replica knows none
                    field("high_watermark", INT64, since=18, tag=1, default=INT64_MAX),
                ),
            ),
        ),
    ),
    field(
        "forgotten_topics_data",
        array(
            field("topic", STRING, until=12),
            field("topic_id", UUID, since=13),
            field("partitions", array(INT32)),
        ),
        since=7,
    ),
    field("rack_id", STRING, since=11),
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field("error_code", INT16, since=7),
    field("session_id", INT32, since=7),
    field(
        "responses",
        array(
            field("topic", STRING, until=12),
            field("topic_id", UUID, since=13),
            field(
                "partitions",
                array(
                    field("partition_index", INT32),
                    field("error_code", INT16),
                    field("high_watermark", INT64),
                    field("last_stable_offset", INT64, default=-1),
                    field("log_start_offset", INT64, since=5, default=-1),
                    field(
                        "diverging_epoch",
                        message(
                            field("epoch", INT32, default=-1),
                            field("end_offset", INT64, default=-1),
                        ),
                        since=12,
                        tag=0,
                    ),
                    field(
                        "current_leader",
                        message(
                            field("leader_id", INT32, default=-1),
                            field("leader_epoch", INT32, default=-1),
                        ),
                        since=12,
                        tag=1,
                    ),
                    field(
                        "snapshot_id",
                        message(
                            field("end_offset", INT64, default=-1),
                            field("epoch", INT32, default=-1),
                        ),
                        since=12,
                        tag=2,
                    ),
                    field(
                        "aborted_transactions",
                        array(field("producer_id", INT64), field("first_offset", INT64)),
                        nullable_since=0,
                    ),
                    field("preferred_read_replica", INT32, since=11, default=-1),
                    field("records", RECORDS, nullable_since=0),
                ),
            ),
        ),
    ),
    field(
        "node_endpoints",
        array(
            field("node_id", INT32),
            field("host", STRING),
            field("port", INT32),
            field("rack", STRING, default=None),
        ),
        since=16,
        tag=0,
    ),
)

API = Api(
    key=1,
    name="Fetch",
    versions=(4, 18),
    advertised=(4, 18),
    flexible_from=12,
    request=REQUEST,
    response=RESPONSE,
)
