"""SealTransactions (key 32003): a transaction coordinator seals prepared transactions.

Peers only, and not in Apache Kafka. A partition of a prepared transaction (KIP-939) gets a seal.
After it, the partition rejects the epoch of the records, and the transaction stays open until its
marker arrives. The schema is that of WriteTxnMarkers, without an outcome.

v0  flexible
"""

from __future__ import annotations

from mqd.protocol.schema import INT16, INT32, INT64, STRING, Api, array, field, message

REQUEST = message(
    field(
        "seals",
        array(
            field("producer_id", INT64),
            field("producer_epoch", INT16),  # one above that of the records
            field("topics", array(field("name", STRING), field("partition_indexes", array(INT32)))),
            field("coordinator_epoch", INT32),
        ),
    ),
)

RESPONSE = message(
    field(
        "seals",
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
    key=32_003,
    name="SealTransactions",
    versions=(0, 0),
    advertised=None,
    flexible_from=0,
    request=REQUEST,
    response=RESPONSE,
)
