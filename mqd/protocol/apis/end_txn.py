"""EndTxn (key 26): commits or aborts a transaction.

v1  same
v2  may return PRODUCER_FENCED
v3  flexible
v4  may return TRANSACTION_ABORTABLE (KIP-890)
v5  each end raises the epoch, and the response has the next producer id and epoch (KIP-890)
"""

from __future__ import annotations

from mqd.protocol.schema import BOOLEAN, INT16, INT32, INT64, STRING, Api, field, message

REQUEST = message(
    field("transactional_id", STRING),
    field("producer_id", INT64),
    field("producer_epoch", INT16),
    field("committed", BOOLEAN),
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field("error_code", INT16),
    field("producer_id", INT64, since=5, default=-1),
    field("producer_epoch", INT16, since=5, default=-1),
)

API = Api(
    key=26,
    name="EndTxn",
    versions=(0, 5),
    advertised=(0, 5),
    flexible_from=3,
    request=REQUEST,
    response=RESPONSE,
)
