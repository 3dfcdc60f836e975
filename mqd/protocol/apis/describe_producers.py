"""DescribeProducers (key 61): the state of idempotent producers in partitions (KIP-664).

v0  flexible
"""

from __future__ import annotations

from mqd.protocol.schema import INT16, INT32, INT64, STRING, TEXT, Api, array, field, message

REQUEST = message(
    field("topics", array(field("name", STRING), field("partition_indexes", array(INT32)))),
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field(
        "topics",
        array(
            field("name", STRING),
            field(
                "partitions",
                array(
                    field("partition_index", INT32),
                    field("error_code", INT16),
                    field("error_message", TEXT, default=None),
                    field(
                        "active_producers",
                        array(
                            field("producer_id", INT64),
                            field("producer_epoch", INT32),
                            field("last_sequence", INT32, default=-1),
                            field("last_timestamp", INT64, default=-1),
                            field("coordinator_epoch", INT32),  # of the last transaction marker
                            # -1: no open transaction
                            field("current_txn_start_offset", INT64, default=-1),
                        ),
                    ),
                ),
            ),
        ),
    ),
)

API = Api(
    key=61,
    name="DescribeProducers",
    versions=(0, 0),
    advertised=(0, 0),
    flexible_from=0,
    request=REQUEST,
    response=RESPONSE,
)
