"""ListTransactions (key 66): the transactional ids that a broker coordinates (KIP-664). Flexible
from the start.

v1  a filter by the age of the transaction (KIP-994)
v2  a filter by a pattern of the id; may return INVALID_REGULAR_EXPRESSION (KIP-1152)
"""

from __future__ import annotations

from mqd.protocol.schema import BOOLEAN, INT16, INT32, INT64, STRING, Api, array, field, message

REQUEST = message(
    field("state_filters", array(STRING)),
    field("producer_id_filters", array(INT64)),
    field("duration_filter", INT64, since=1, default=-1),  # milliseconds
    field("transactional_id_pattern", STRING, since=2, default=None),  # RE2, of the whole id
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field("error_code", INT16),
    field("unknown_state_filters", array(STRING)),
    field(
        "transaction_states",
        array(
            field("transactional_id", STRING),
            field("producer_id", INT64),
            field("transaction_state", STRING),
            # only mqd has it: the transaction waits for its owner's decision (KIP-939)
            field("prepared", BOOLEAN, since=0, tag=10_000, default=False),
        ),
    ),
)

API = Api(
    key=66,
    name="ListTransactions",
    versions=(0, 2),
    advertised=(0, 2),
    flexible_from=0,
    request=REQUEST,
    response=RESPONSE,
)
