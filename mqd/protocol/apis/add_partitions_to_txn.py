"""AddPartitionsToTxn (key 24): adds partitions to a transaction, or verifies that they were added.

v1  same
v2  may return PRODUCER_FENCED
v3  flexible
v4  from brokers: several transactions at once, and verification only (KIP-890)
v5  may return TRANSACTION_ABORTABLE (KIP-890)
"""

from __future__ import annotations

from mqd.protocol.schema import BOOLEAN, INT16, INT32, INT64, STRING, Api, array, field, message

_TOPICS = array(field("name", STRING), field("partitions", array(INT32)))
_TOPIC_RESULTS = array(
    field("name", STRING),
    field(
        "results_by_partition",
        array(field("partition_index", INT32), field("partition_error_code", INT16)),
    ),
)

REQUEST = message(
    field(
        "transactions",
        array(
            field("transactional_id", STRING),
            field("producer_id", INT64),
            field("producer_epoch", INT16),
            field("verify_only", BOOLEAN),
            field("topics", _TOPICS),
        ),
        since=4,
    ),
    # this and the next three: the only transaction
    field("v3_and_below_transactional_id", STRING, until=3),
    field("v3_and_below_producer_id", INT64, until=3),
    field("v3_and_below_producer_epoch", INT16, until=3),
    field("v3_and_below_topics", _TOPICS, until=3),
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field("error_code", INT16, since=4),
    field(
        "results_by_transaction",
        array(field("transactional_id", STRING), field("topic_results", _TOPIC_RESULTS)),
        since=4,
    ),
    field("results_by_topic_v3_and_below", _TOPIC_RESULTS, until=3),
)

API = Api(
    key=24,
    name="AddPartitionsToTxn",
    versions=(0, 5),
    advertised=(0, 5),
    flexible_from=3,
    request=REQUEST,
    response=RESPONSE,
)
