"""DeleteAcls (key 31): deletes the ACLs that match any of the filters.

v1  pattern types (KIP-290)
v2  flexible
v3  resources of type USER (KIP-373)
"""

from __future__ import annotations

from mqd.protocol.schema import INT8, INT16, INT32, STRING, TEXT, Api, array, field, message

REQUEST = message(
    field(
        "filters",
        array(
            field("resource_type_filter", INT8),  # numbers as in mqd/security/acls.py
            field("resource_name_filter", STRING, nullable_since=0),
            field("pattern_type_filter", INT8, since=1, default=3),
            field("principal_filter", STRING, nullable_since=0),
            field("host_filter", STRING, nullable_since=0),
            field("operation", INT8),
            field("permission_type", INT8),
        ),
    ),
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field(
        "filter_results",
        array(
            field("error_code", INT16),
            field("error_message", TEXT, nullable_since=0),
            field(
                "matching_acls",
                array(
                    field("error_code", INT16),
                    field("error_message", TEXT, nullable_since=0),
                    field("resource_type", INT8),
                    field("resource_name", STRING),
                    field("pattern_type", INT8, since=1, default=3),
                    field("principal", STRING),
                    field("host", STRING),
                    field("operation", INT8),
                    field("permission_type", INT8),
                ),
            ),
        ),
    ),
)

API = Api(
    key=31,
    name="DeleteAcls",
    versions=(1, 3),
    advertised=(1, 3),
    flexible_from=2,
    request=REQUEST,
    response=RESPONSE,
)
