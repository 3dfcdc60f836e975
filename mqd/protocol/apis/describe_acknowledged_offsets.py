"""DescribeAcknowledgedOffsets (key 32022): the offsets below which the groups of one node's shards
have acknowledged all records of some topics.

Peers only, and not in Apache Kafka. Sent by leaders of partitions with
`mqd.retention.acknowledged=true` to all coordinators. The response names the shards that were
considered. A partition is in it if a group was seen there.

v0  flexible
"""

from __future__ import annotations

from mqd.protocol.schema import INT16, INT32, INT64, STRING, UUID, Api, array, field, message

REQUEST = message(field("topics", array(field("name", STRING), field("topic_id", UUID))))

RESPONSE = message(
    field("error_code", INT16),
    field("group_shards", array(INT32)),  # partitions of __consumer_offsets
    field("share_shards", array(INT32)),  # partitions of __share_group_state
    field(
        "topics",
        array(
            field("name", STRING),
            field("is_awaited", INT16),  # 1: a subscribed group has no offset in some partition
            field("partitions", array(field("partition", INT32), field("offset", INT64))),
        ),
    ),
)

API = Api(
    key=32_022,
    name="DescribeAcknowledgedOffsets",
    versions=(0, 0),
    advertised=None,
    flexible_from=0,
    request=REQUEST,
    response=RESPONSE,
)
