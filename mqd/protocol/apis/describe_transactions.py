"""DescribeTransactions (key 65): the state of transactional ids at their coordinator (KIP-664).

Flexible from the start.
"""

from __future__ import annotations

from mqd.protocol.schema import INT16, INT32, INT64, STRING, Api, array, field, message

REQUEST = message(
    field("transactional_ids", array(STRING)),
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field(
        "transaction_states",
        array(
            field("error_code", INT16),
            field("transactional_id", STRING),
            field("transaction_state", STRING),  # for example Ongoing
            field("transaction_timeout_ms", INT32),
            field("transaction_start_time_ms", INT64),  # -1: none has begun
            field("producer_id", INT64),
            field("producer_epoch", INT16),
            # of the current transaction
            field("topics", array(field("topic", STRING), field("partitions", array(INT32)))),
            # only mqd has it: the owner that ends a prepared transaction (KIP-939)
            field("owner_producer_id", INT64, since=0, tag=10_000, default=-1),
            field("owner_producer_epoch", INT16, since=0, tag=10_001, default=-1),
        ),
    ),
)

API = Api(
    key=65,
    name="DescribeTransactions",
    versions=(0, 0),
    advertised=(0, 0),
    flexible_from=0,
    request=REQUEST,
    response=RESPONSE,
)
