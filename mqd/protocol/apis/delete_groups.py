"""DeleteGroups (key 42): deletes empty groups of any type, with their offsets (KIP-229).

v1  as v0
v2  flexible
"""

from __future__ import annotations

from mqd.protocol.schema import INT16, INT32, STRING, Api, array, field, message

REQUEST = message(field("groups_names", array(STRING)))

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field("results", array(field("group_id", STRING), field("error_code", INT16))),
)

API = Api(
    key=42,
    name="DeleteGroups",
    versions=(0, 2),
    advertised=(0, 2),
    flexible_from=2,
    request=REQUEST,
    response=RESPONSE,
)
