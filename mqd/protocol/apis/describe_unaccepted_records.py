"""DescribeUnacceptedRecords (key 32023): how many records of a share group no member accepted, as
the leaders of its partitions count them.

Peers only, and not in Apache Kafka. Sent by the coordinator of the group to the leaders. Partitions
that the receiver does not lead are left out of the response.

v0  flexible
"""

from __future__ import annotations

from mqd.protocol.schema import INT16, INT32, INT64, STRING, UUID, Api, array, field, message

REQUEST = message(
    field("group_id", STRING),
    field("topics", array(field("topic_id", UUID), field("partitions", array(INT32)))),
)

RESPONSE = message(
    field("error_code", INT16),
    field(
        "topics",
        array(
            field("topic_id", UUID),
            field(
                "partitions",
                array(
                    field("partition", INT32),
                    field("expired", INT64),
                    field("given_up", INT64),  # without a dead letter
                ),
            ),
        ),
    ),
)

API = Api(
    key=32_023,
    name="DescribeUnacceptedRecords",
    versions=(0, 0),
    advertised=None,
    flexible_from=0,
    request=REQUEST,
    response=RESPONSE,
)
