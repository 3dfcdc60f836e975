"""AddOffsetsToTxn (key 25): adds the committed offsets of a group to a transaction.

v1  same
v2  may return PRODUCER_FENCED
v3  flexible
v4  may return TRANSACTION_ABORTABLE (KIP-890)
"""

from __future__ import annotations

from mqd.protocol.schema import INT16, INT32, INT64, STRING, Api, field, message

REQUEST = message(
    field("transactional_id", STRING),
    field("producer_id", INT64),
    field("producer_epoch", INT16),
    field("group_id", STRING),
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field("error_code", INT16),
)

API = Api(
    key=25,
    name="AddOffsetsToTxn",
    versions=(0, 4),
    advertised=(0, 4),
    flexible_from=3,
    request=REQUEST,
    response=RESPONSE,
)
