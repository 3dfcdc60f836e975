"""InitProducerId (key 22): an id and epoch for an idempotent or transactional producer.

v2  flexible
v3  the producer's current id and epoch, so that it can continue after an error (KIP-360)
v4  may return PRODUCER_FENCED
v5  may return TRANSACTION_ABORTABLE (KIP-890)
v6  two-phase commit (KIP-939): unstable in Kafka 4.3, so a node supports it only if an option
    enables it (server/unstable.py)
"""

from __future__ import annotations

from mqd.protocol.schema import BOOLEAN, INT16, INT32, INT64, STRING, Api, field, message

REQUEST = message(
    field("transactional_id", STRING, nullable_since=0),  # null: idempotent only
    field("transaction_timeout_ms", INT32),
    field("producer_id", INT64, since=3, default=-1),
    field("producer_epoch", INT16, since=3, default=-1),
    field("enable_2_pc", BOOLEAN, since=6, default=False),
    field("keep_prepared_txn", BOOLEAN, since=6, default=False),
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field("error_code", INT16),
    field("producer_id", INT64, default=-1),
    field("producer_epoch", INT16),
    field("ongoing_txn_producer_id", INT64, since=6, default=-1),  # -1: no transaction was prepared
    field("ongoing_txn_producer_epoch", INT16, since=6, default=-1),
)

API = Api(
    key=22,
    name="InitProducerId",
    versions=(0, 6),
    advertised=(0, 5),
    flexible_from=2,
    request=REQUEST,
    response=RESPONSE,
)
