"""The client for Trio: `from mqd.client import connect, open_producer, TopicPartition`.

The names in `__all__` are the public interface; docs/CLIENT.md describes it, and names of other
modules may change. `mqd.client.sync` has the same client for programs without Trio.

A name is imported when it is first used: `import mqd.client` alone takes 2 ms and imports neither
Trio nor the protocol. A broker that imports one module of this package relies on that.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mqd.client.access import (
        AccessDecision,
        Acl,
        AclFilter,
        AclOperation,
        AclPermission,
        AclResourceType,
        PatternType,
        ScramCredentialInfo,
        ScramDeletion,
        ScramMechanism,
        ScramUpsertion,
    )
    from mqd.client.admin import Admin
    from mqd.client.arrow import ArrowProducer, open_arrow_producer
    from mqd.client.cluster import ClusterClient, connect
    from mqd.client.consumer import Consumer, open_consumer
    from mqd.client.delivery import Delivery, RecordMetadata
    from mqd.client.descriptions import (
        EARLIEST,
        LATEST,
        MAX_TIMESTAMP,
        ConfigChange,
        ConfigEntry,
        ConfigOperation,
        ListedOffset,
        NewTopic,
        Resource,
        ResourceType,
    )
    from mqd.client.errors import (
        AcknowledgementFailed,
        AuthenticationFailed,
        ClaimRefused,
        ClientClosed,
        ClientCrashed,
        ClientError,
        CommitFailed,
        ConnectionBroken,
        ConsumerClosed,
        DeadlineExceeded,
        InvalidType,
        InvalidValue,
        PeerUnreachable,
        ProducerClosed,
        TlsHandshakeFailed,
        TransactionBroken,
    )
    from mqd.client.fetched_batches import FetchedBatch
    from mqd.client.finding import Finding, FoundRecord, find, find_as_of
    from mqd.client.group_consumer import GroupConsumer, open_group_consumer
    from mqd.client.group_member import GroupMetadata
    from mqd.client.group_options import GroupOptions
    from mqd.client.offset_specs import AtTime, OffsetSpec, resolve_offsets
    from mqd.client.offsets import CommittedOffset
    from mqd.client.partitioner import Partitioner, RoundRobinPartitioner
    from mqd.client.producer import Producer, open_producer
    from mqd.client.producer_options import ProducerOptions, TransactionalOptions
    from mqd.client.range_plan import FetchedRange
    from mqd.client.ranges import RangeReader, open_range
    from mqd.client.raw_producer import RawProducer, end_transaction, open_raw_producer
    from mqd.client.retry import attempts_of
    from mqd.client.security import Security
    from mqd.client.share_consumer import ShareConsumer, open_share_consumer
    from mqd.client.share_options import ShareOptions
    from mqd.client.share_records import ShareRecord
    from mqd.client.transactional import TransactionalProducer, open_transactional_producer
    from mqd.errors import ErrorCode
    from mqd.protocol.compression import Codec
    from mqd.protocol.record_reader import Record
    from mqd.types import TopicPartition

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "AccessDecision",
    "AcknowledgementFailed",
    "Acl",
    "AclFilter",
    "AclOperation",
    "AclPermission",
    "AclResourceType",
    "Admin",
    "ArrowProducer",
    "AtTime",
    "AuthenticationFailed",
    "ClaimRefused",
    "ClientClosed",
    "ClientCrashed",
    "ClientError",
    "ClusterClient",
    "Codec",
    "CommitFailed",
    "CommittedOffset",
    "ConfigChange",
    "ConfigEntry",
    "ConfigOperation",
    "ConnectionBroken",
    "Consumer",
    "ConsumerClosed",
    "DeadlineExceeded",
    "Delivery",
    "ErrorCode",
    "FetchedBatch",
    "FetchedRange",
    "Finding",
    "FoundRecord",
    "GroupConsumer",
    "GroupMetadata",
    "GroupOptions",
    "InvalidType",
    "InvalidValue",
    "ListedOffset",
    "NewTopic",
    "OffsetSpec",
    "Partitioner",
    "PatternType",
    "PeerUnreachable",
    "Producer",
    "ProducerClosed",
    "ProducerOptions",
    "RangeReader",
    "RawProducer",
    "Record",
    "RecordMetadata",
    "Resource",
    "ResourceType",
    "RoundRobinPartitioner",
    "ScramCredentialInfo",
    "ScramDeletion",
    "ScramMechanism",
    "ScramUpsertion",
    "Security",
    "ShareConsumer",
    "ShareOptions",
    "ShareRecord",
    "TlsHandshakeFailed",
    "TopicPartition",
    "TransactionBroken",
    "TransactionalOptions",
    "TransactionalProducer",
    "attempts_of",
    "connect",
    "end_transaction",
    "find",
    "find_as_of",
    "open_arrow_producer",
    "open_consumer",
    "open_group_consumer",
    "open_producer",
    "open_range",
    "open_raw_producer",
    "open_share_consumer",
    "open_transactional_producer",
    "resolve_offsets",
]

_MODULES = {
    "AccessDecision": "mqd.client.access",
    "Acl": "mqd.client.access",
    "AclFilter": "mqd.client.access",
    "AclOperation": "mqd.client.access",
    "AclPermission": "mqd.client.access",
    "AclResourceType": "mqd.client.access",
    "PatternType": "mqd.client.access",
    "ScramCredentialInfo": "mqd.client.access",
    "ScramDeletion": "mqd.client.access",
    "ScramMechanism": "mqd.client.access",
    "ScramUpsertion": "mqd.client.access",
    "Admin": "mqd.client.admin",
    "ArrowProducer": "mqd.client.arrow",
    "open_arrow_producer": "mqd.client.arrow",
    "ClusterClient": "mqd.client.cluster",
    "connect": "mqd.client.cluster",
    "Consumer": "mqd.client.consumer",
    "open_consumer": "mqd.client.consumer",
    "Delivery": "mqd.client.delivery",
    "RecordMetadata": "mqd.client.delivery",
    "EARLIEST": "mqd.client.descriptions",
    "LATEST": "mqd.client.descriptions",
    "MAX_TIMESTAMP": "mqd.client.descriptions",
    "ConfigChange": "mqd.client.descriptions",
    "ConfigEntry": "mqd.client.descriptions",
    "ConfigOperation": "mqd.client.descriptions",
    "ListedOffset": "mqd.client.descriptions",
    "NewTopic": "mqd.client.descriptions",
    "Resource": "mqd.client.descriptions",
    "ResourceType": "mqd.client.descriptions",
    "AcknowledgementFailed": "mqd.client.errors",
    "AuthenticationFailed": "mqd.client.errors",
    "ClaimRefused": "mqd.client.errors",
    "ClientClosed": "mqd.client.errors",
    "ClientCrashed": "mqd.client.errors",
    "ClientError": "mqd.client.errors",
    "CommitFailed": "mqd.client.errors",
    "ConnectionBroken": "mqd.client.errors",
    "ConsumerClosed": "mqd.client.errors",
    "DeadlineExceeded": "mqd.client.errors",
    "InvalidType": "mqd.client.errors",
    "InvalidValue": "mqd.client.errors",
    "PeerUnreachable": "mqd.client.errors",
    "ProducerClosed": "mqd.client.errors",
    "TlsHandshakeFailed": "mqd.client.errors",
    "TransactionBroken": "mqd.client.errors",
    "attempts_of": "mqd.client.retry",
    "Security": "mqd.client.security",
    "FetchedBatch": "mqd.client.fetched_batches",
    "Finding": "mqd.client.finding",
    "FoundRecord": "mqd.client.finding",
    "find": "mqd.client.finding",
    "find_as_of": "mqd.client.finding",
    "GroupConsumer": "mqd.client.group_consumer",
    "open_group_consumer": "mqd.client.group_consumer",
    "GroupMetadata": "mqd.client.group_member",
    "GroupOptions": "mqd.client.group_options",
    "AtTime": "mqd.client.offset_specs",
    "OffsetSpec": "mqd.client.offset_specs",
    "resolve_offsets": "mqd.client.offset_specs",
    "CommittedOffset": "mqd.client.offsets",
    "Partitioner": "mqd.client.partitioner",
    "RoundRobinPartitioner": "mqd.client.partitioner",
    "Producer": "mqd.client.producer",
    "open_producer": "mqd.client.producer",
    "ProducerOptions": "mqd.client.producer_options",
    "TransactionalOptions": "mqd.client.producer_options",
    "FetchedRange": "mqd.client.range_plan",
    "RangeReader": "mqd.client.ranges",
    "open_range": "mqd.client.ranges",
    "RawProducer": "mqd.client.raw_producer",
    "end_transaction": "mqd.client.raw_producer",
    "open_raw_producer": "mqd.client.raw_producer",
    "ShareConsumer": "mqd.client.share_consumer",
    "open_share_consumer": "mqd.client.share_consumer",
    "ShareOptions": "mqd.client.share_options",
    "ShareRecord": "mqd.client.share_records",
    "TransactionalProducer": "mqd.client.transactional",
    "open_transactional_producer": "mqd.client.transactional",
    "ErrorCode": "mqd.errors",
    "Record": "mqd.protocol.record_reader",
    "Codec": "mqd.protocol.compression",
    "TopicPartition": "mqd.types",
}
"""Public name -> its module."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_MODULES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
