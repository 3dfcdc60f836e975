"""BrokerHeartbeat (key 63): a broker renews its session. Peers only; flexible from
the start.

v1  failed log directories, tagged (KIP-858)
v2  cordoned log directories, tagged (KIP-1066)
"""

from __future__ import annotations

from mqd.protocol.schema import BOOLEAN, INT16, INT32, INT64, UUID, Api, array, field, message

REQUEST = message(
    field("broker_id", INT32),
    field("broker_epoch", INT64, default=-1),
    field("current_metadata_offset", INT64),  # replayed so far
    field("want_fence", BOOLEAN),
    field("want_shut_down", BOOLEAN),
    field("offline_log_dirs", array(UUID), since=1, tag=0),
    field("cordoned_log_dirs", array(UUID), since=2, tag=1, default=None),  # null: not known yet
    field("disk_serial", INT64, since=1, tag=10_000, default=0),  # only mqd has it
    # how many its file descriptors allow; only mqd has it
    field("partitions_max", INT32, since=1, tag=10_001, default=-1),
    # the newest mqd.metadata.version that it supports; only mqd has it
    field("metadata_version_max", INT16, since=1, tag=10_002, default=0),
    # how many partitions in memory its options allow; only mqd has it
    field("memory_partitions_max", INT32, since=1, tag=10_003, default=-1),
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field("error_code", INT16),
    field("is_caught_up", BOOLEAN),
    field("is_fenced", BOOLEAN, default=True),
    field("should_shut_down", BOOLEAN),
    # of the controller's image; only mqd has it
    field("metadata_index", INT64, since=1, tag=10_000, default=-1),
)

API = Api(
    key=63,
    name="BrokerHeartbeat",
    versions=(0, 2),
    advertised=None,
    flexible_from=0,
    request=REQUEST,
    response=RESPONSE,
)
