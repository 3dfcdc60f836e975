"""AllocateProducerIds (key 67): a broker requests a block of producer ids (KIP-730).
Peers only.

v0  flexible
"""

from __future__ import annotations

from mqd.protocol.schema import INT16, INT32, INT64, Api, field, message

REQUEST = message(
    field("broker_id", INT32),
    field("broker_epoch", INT64, default=-1),
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field("error_code", INT16),
    field("producer_id_start", INT64),
    field("producer_id_len", INT32),
)

API = Api(
    key=67,
    name="AllocateProducerIds",
    versions=(0, 0),
    advertised=None,
    flexible_from=0,
    request=REQUEST,
    response=RESPONSE,
)
