"""DescribeIdleProducer (key 32021): how long a transactional id has had no transaction.

Peers only, and not in Apache Kafka. Sent to the coordinator of the transactional id, which also
returns the index of the metadata that it has applied.

v0  flexible
"""

from __future__ import annotations

from mqd.protocol.schema import INT16, INT64, STRING, Api, field, message

REQUEST = message(field("transactional_id", STRING))

RESPONSE = message(
    field("error_code", INT16),
    field("idle_ms", INT64),  # -1: a transaction is open
    field("metadata_index", INT64),
)

API = Api(
    key=32_021,
    name="DescribeIdleProducer",
    versions=(0, 0),
    advertised=None,
    flexible_from=0,
    request=REQUEST,
    response=RESPONSE,
)
