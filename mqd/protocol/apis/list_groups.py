"""ListGroups (key 16): the groups that a node coordinates.

v1  throttle time
v3  flexible
v4  a filter by state, and the state in the response (KIP-518)
v5  a filter by type, and the type in the response (KIP-848)
"""

from __future__ import annotations

from mqd.protocol.schema import INT16, INT32, STRING, Api, array, field, message

REQUEST = message(
    field("states_filter", array(STRING), since=4), field("types_filter", array(STRING), since=5)
)

RESPONSE = message(
    field("throttle_time_ms", INT32, since=1),
    field("error_code", INT16),
    field(
        "groups",
        array(
            field("group_id", STRING),
            field("protocol_type", STRING),
            field("group_state", STRING, since=4),
            field("group_type", STRING, since=5),
        ),
    ),
)

API = Api(
    key=16,
    name="ListGroups",
    versions=(0, 5),
    advertised=(0, 5),
    flexible_from=3,
    request=REQUEST,
    response=RESPONSE,
)
