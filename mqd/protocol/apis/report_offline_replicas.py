"""ReportOfflineReplicas (key 32002): a broker reports its lost replicas to the controller.
Peers only, and not in Apache Kafka.

In Kafka, brokers report failed log directories (KIP-112, KIP-858). In mqd, a single replica can be
lost, too: a corrupt log is fenced alone, and the other logs of its directory stay online.

v0  flexible
"""

from __future__ import annotations

from mqd.protocol.schema import INT16, INT32, INT64, UUID, Api, array, field, message

REQUEST = message(
    field("broker_id", INT32),
    field("broker_epoch", INT64, default=-1),
    field("topics", array(field("topic_id", UUID), field("partitions", array(INT32)))),
)

RESPONSE = message(field("error_code", INT16))

API = Api(
    key=32_002,
    name="ReportOfflineReplicas",
    versions=(0, 0),
    advertised=None,
    flexible_from=0,
    request=REQUEST,
    response=RESPONSE,
)
