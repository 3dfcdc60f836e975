"""AlterPartition (key 56): a leader requests a change of an ISR (KIP-497). Peers only;
flexible from the start.

v2  topics by id (KIP-841); no release since Apache Kafka 4.0 supports earlier versions, with names
v3  the ISR with broker epochs, to detect a broker that was restarted meanwhile (KIP-903)
"""

from __future__ import annotations

from mqd.protocol.schema import INT8, INT16, INT32, INT64, UUID, Api, array, field, message

REQUEST = message(
    field("broker_id", INT32),
    field("broker_epoch", INT64, default=-1),
    field(
        "topics",
        array(
            field("topic_id", UUID),
            field(
                "partitions",
                array(
                    field("partition_index", INT32),
                    field("leader_epoch", INT32),
                    field("new_isr", array(INT32), until=2),
                    field(
                        "new_isr_with_epochs",
                        # -1: do not check
                        array(field("broker_id", INT32), field("broker_epoch", INT64, default=-1)),
                        since=3,
                    ),
                    field("leader_recovery_state", INT8),  # 1: recovers from an unclean election
                    field("partition_epoch", INT32),  # the epoch that the change replaces
                ),
            ),
        ),
    ),
)

RESPONSE = message(
    field("throttle_time_ms", INT32),
    field("error_code", INT16),
    field(
        "topics",
        array(
            field("topic_id", UUID),
            field(
                "partitions",
                array(
                    field("partition_index", INT32),
                    field("error_code", INT16),
                    field("leader_id", INT32),
                    field("leader_epoch", INT32),
                    field("isr", array(INT32)),
                    field("leader_recovery_state", INT8),
                    field("partition_epoch", INT32),
                ),
            ),
        ),
    ),
)

API = Api(
    key=56,
    name="AlterPartition",
    versions=(2, 3),
    advertised=None,
    flexible_from=0,
    request=REQUEST,
    response=RESPONSE,
)
