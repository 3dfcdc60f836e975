"""ClaimTopic (key 32020): a transactional id becomes the owner of a topic with
`mqd.producer.access=exclusive` or `wait`, or its claim is settled.

Peers only, and not in Apache Kafka. Sent by the coordinator of the transactional id to the
controller. The response has no error if the claim is outdated: the metadata up to its index shows
the owner.

v0  flexible
"""

from __future__ import annotations

from mqd.protocol.schema import INT16, INT64, STRING, Api, array, field, message

REQUEST = message(
    field("topic", STRING),
    field("transactional_id", STRING),
    field("expected_owner", STRING),
    field("fenced", array(STRING)),
)

RESPONSE = message(field("error_code", INT16), field("metadata_index", INT64))

API = Api(
    key=32_020,
    name="ClaimTopic",
    versions=(0, 0),
    advertised=None,
    flexible_from=0,
    request=REQUEST,
    response=RESPONSE,
)
