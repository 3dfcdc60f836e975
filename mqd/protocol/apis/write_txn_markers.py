"""WriteTxnMarkers (key 27): a transaction coordinator writes markers to the partitions of a
node (KIP-98).

KIP-896 removed version 0. Clients may send this request, too, to end hanging transactions
(KIP-664).

v1  flexible
v2  the transaction version, which determines the check of the producer epoch (KIP-1228)
"""

from __future__ import annotations

from mqd.protocol.schema import (
    BOOLEAN,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    Api,
    array,
    field,
    message,
)

REQUEST = message(
    field(
        "markers",
        array(
            field("producer_id", INT64),
            field("producer_epoch", INT16),
            field("transaction_result", BOOLEAN),  # true: committed
            field("topics", array(field("name", STRING), field("partition_indexes", array(INT32)))),
            field("coordinator_epoch", INT32),
            field("transaction_version", INT8, since=2, default=0),
        ),
    ),
)

RESPONSE = message(
    field(
        "markers",
        array(
            field("producer_id", INT64),
            field(
                "topics",
                array(
                    field("name", STRING),
                    field(
                        "partitions",
                        array(field("partition_index", INT32), field("error_code", INT16)),
                    ),
                ),
            ),
        ),
    ),
)

API = Api(
    key=27,
    name="WriteTxnMarkers",
    versions=(1, 2),
    advertised=(1, 2),
    flexible_from=1,
    request=REQUEST,
    response=RESPONSE,
)
