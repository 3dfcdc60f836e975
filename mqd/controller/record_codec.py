"""The bytes of a record: uvarint type, uvarint size, fields in the order of its class.

An unknown record type or field is an error, never skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, NamedTuple
from uuid import UUID

from mqd.controller.endpoints import BrokerEndpoint, Endpoints
from mqd.controller.record_fields import (
    FieldReader,
    put_bytes,
    put_distance,
    put_node,
    put_nodes,
    put_nullable,
    put_nullable_number,
    put_string,
    put_uvarint,
)
from mqd.controller.records import (
    AddPartitions,
    ChangePartitions,
    CreateAcl,
    CreateTopic,
    DeleteAcl,
    DeleteScramCredential,
    DeleteTopic,
    FormatCluster,
    LoseReplicas,
    MetadataRecord,
    NoteDiskSerial,
    PartitionChange,
    PartitionUpdate,
    Placement,
    RegisterBroker,
    SetBrokerEndpoints,
    SetBrokerFencing,
    SetClientQuotas,
    SetConfigs,
    SetFeature,
    SetNextProducerId,
    SetScramCredential,
    ShutDownBroker,
    UnregisterBroker,
    UpdatePartitions,
)
from mqd.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from mqd.security.scram_credentials import ScramCredential, ScramMechanism
from mqd.types import NO_EPOCH


class Field(NamedTuple):
    """The codec of one field of a record."""

    put: Callable[[bytearray, Any], None]
    get: Callable[[FieldReader], Any]


def _pairs(first: Field, second: Field) -> Field:
    """A tuple of pairs."""

    def put(out: bytearray, pairs: tuple[tuple[Any, Any], ...]) -> None:
        put_uvarint(out, len(pairs))
        for left, right in pairs:
            first.put(out, left)
            second.put(out, right)

    def get(reader: FieldReader) -> tuple[tuple[Any, Any], ...]:
        return tuple((first.get(reader), second.get(reader)) for _ in range(reader.count()))

    return Field(put, get)


def _put_uuid(out: bytearray, value: UUID) -> None:
    out += value.bytes


def _put_optional_epoch(out: bytearray, value: int) -> None:
    if value != NO_EPOCH:
        put_uvarint(out, value)


def _get_optional_epoch(reader: FieldReader) -> int:
    return reader.uvarint() if reader.has_more() else NO_EPOCH


def _put_placements(out: bytearray, partitions: tuple[Placement, ...]) -> None:
    """Compact, and regular for zlib: the ISR is written only if it is not all replicas. Equal
    placements are encoded once.
    """
    put_uvarint(out, len(partitions))
    encoded = dict.fromkeys(partitions, b"")
    for placement in encoded:
        encoded[placement] = _encode_placement(placement)
    out += b"".join(map(encoded.__getitem__, partitions))


def _encode_placement(placement: Placement) -> bytes:
    replicas, leader, isr = placement
    out = bytearray()
    put_nodes(out, replicas)
    put_node(out, leader)
    if isr == replicas:
        put_uvarint(out, 0)
    else:
        put_uvarint(out, 1)
        put_nodes(out, isr)
    return bytes(out)


def _get_placements(reader: FieldReader) -> tuple[Placement, ...]:
    return tuple(_get_placement(reader) for _ in range(reader.count()))


def _get_placement(reader: FieldReader) -> Placement:
    replicas = reader.nodes()
    leader = reader.node()
    return Placement(replicas, leader, reader.nodes() if reader.uvarint() else replicas)


def _put_changes(out: bytearray, changes: tuple[PartitionChange, ...]) -> None:
    put_uvarint(out, len(changes))
    previous = -1
    for partition, leader, isr in changes:
        previous = put_distance(out, previous, partition)
        put_node(out, leader)
        put_nodes(out, isr)


def _get_changes(reader: FieldReader) -> tuple[PartitionChange, ...]:
    return tuple(
        PartitionChange(index, reader.node(), reader.nodes()) for index in reader.indexes()
    )


_UPDATE_LISTS = len(PartitionUpdate._fields) - 2
"""Fields of a `PartitionUpdate` after index and leader: lists of nodes."""


def _put_updates(out: bytearray, updates: tuple[PartitionUpdate, ...]) -> None:
    """A bit for each field that changes: 1 the leader, 2 the ISR and so on; then these fields."""
    put_uvarint(out, len(updates))
    previous = -1
    for partition, leader, *lists in updates:
        previous = put_distance(out, previous, partition)
        put_uvarint(
            out,
            (leader is not None)
            | sum(2 << bit for bit, nodes in enumerate(lists) if nodes is not None),
        )
        if leader is not None:
            put_node(out, leader)
        for nodes in lists:
            if nodes is not None:
                put_nodes(out, nodes)


def _get_updates(reader: FieldReader) -> tuple[PartitionUpdate, ...]:
    return tuple(_get_update(reader, index) for index in reader.indexes())


def _get_update(reader: FieldReader, index: int) -> PartitionUpdate:
    present = reader.uvarint()
    if present >> 1 + _UPDATE_LISTS:
        raise ValueError(
            "metadata record changes unknown fields of a partition: written by a newer "
            "version of mqd?"
        )
    leader = reader.node() if present & 1 else None
    lists = [reader.nodes() if present & 2 << bit else None for bit in range(_UPDATE_LISTS)]
    return PartitionUpdate(index, leader, *lists)


def _put_indexes(out: bytearray, indexes: tuple[int, ...]) -> None:
    put_uvarint(out, len(indexes))
    previous = -1
    for index in indexes:
        previous = put_distance(out, previous, index)


def _put_credential(out: bytearray, value: ScramCredential) -> None:
    put_uvarint(out, value.iterations)
    for secret in (value.salt, value.stored_key, value.server_key):
        put_bytes(out, secret)


def _get_credential(reader: FieldReader) -> ScramCredential:
    return ScramCredential(reader.uvarint(), reader.bytes_(), reader.bytes_(), reader.bytes_())


def _put_acl(out: bytearray, acl: Acl) -> None:
    put_uvarint(out, acl.resource_type)
    put_string(out, acl.resource_name)
    put_uvarint(out, acl.pattern_type)
    put_string(out, acl.principal)
    put_string(out, acl.host)
    put_uvarint(out, acl.operation)
    put_uvarint(out, acl.permission)


def _get_acl(reader: FieldReader) -> Acl:
    return Acl(
        ResourceType(reader.uvarint()),
        reader.string(),
        PatternType(reader.uvarint()),
        reader.string(),
        reader.string(),
        Operation(reader.uvarint()),
        Permission(reader.uvarint()),
    )


def _put_endpoints(out: bytearray, endpoints: Endpoints) -> None:
    put_uvarint(out, len(endpoints))
    for endpoint in endpoints:
        put_string(out, endpoint.name)
        put_uvarint(out, endpoint.security_protocol)
        put_string(out, endpoint.host)
        put_uvarint(out, endpoint.port)


def _get_endpoints(reader: FieldReader) -> Endpoints:
    return tuple(
        BrokerEndpoint(reader.string(), reader.uvarint(), reader.string(), reader.uvarint())
        for _ in range(reader.uvarint())
    )


UVARINT = Field(put_uvarint, FieldReader.uvarint)
FLAG = Field(put_uvarint, lambda reader: reader.uvarint() == 1)
STRING = Field(put_string, FieldReader.string)
NULLABLE = Field(put_nullable, FieldReader.nullable)
ID = Field(_put_uuid, FieldReader.uuid)
NODE = Field(put_node, FieldReader.node)
OPTIONAL_EPOCH = Field(_put_optional_epoch, _get_optional_epoch)
"""Only as the last field of a record; absent for -1."""
PLACEMENTS = Field(_put_placements, _get_placements)
CHANGES = Field(_put_changes, _get_changes)
UPDATES = Field(_put_updates, _get_updates)
INDEXES = Field(_put_indexes, lambda reader: tuple(reader.indexes()))
NULLABLE_NUMBER = Field(put_nullable_number, FieldReader.nullable_number)
MECHANISM = Field(put_uvarint, lambda reader: ScramMechanism(reader.uvarint()))
CREDENTIAL = Field(_put_credential, _get_credential)
ENDPOINTS = Field(_put_endpoints, _get_endpoints)
ACL = Field(_put_acl, _get_acl)

_FORMATS: dict[type, tuple[int, tuple[Field, ...]]] = {
    FormatCluster: (1, (STRING, _pairs(STRING, UVARINT))),
    RegisterBroker: (2, (NODE, ID, STRING, UVARINT, NULLABLE, OPTIONAL_EPOCH)),
    SetBrokerFencing: (3, (NODE, UVARINT, FLAG)),
    CreateTopic: (4, (STRING, ID, PLACEMENTS, _pairs(STRING, STRING))),
    DeleteTopic: (5, (ID,)),
    AddPartitions: (6, (ID, UVARINT, PLACEMENTS)),
    ChangePartitions: (7, (ID, CHANGES)),
    SetConfigs: (8, (STRING, STRING, _pairs(STRING, NULLABLE))),
    SetNextProducerId: (9, (UVARINT,)),
    UpdatePartitions: (10, (ID, UPDATES)),
    ShutDownBroker: (11, (NODE, UVARINT)),
    UnregisterBroker: (12, (NODE, UVARINT)),
    LoseReplicas: (13, (NODE, UVARINT, ID, INDEXES)),
    SetFeature: (14, (STRING, UVARINT)),
    NoteDiskSerial: (15, (NODE, UVARINT, UVARINT)),
    SetScramCredential: (16, (STRING, MECHANISM, CREDENTIAL)),
    DeleteScramCredential: (17, (STRING, MECHANISM)),
    CreateAcl: (18, (ID, ACL)),
    DeleteAcl: (19, (ID,)),
    SetClientQuotas: (20, (_pairs(STRING, NULLABLE), _pairs(STRING, NULLABLE_NUMBER))),
    SetBrokerEndpoints: (21, (NODE, UVARINT, ENDPOINTS)),
}
"""Type and fields of each record. Types are the format: never reuse one."""

_ENCODERS = {
    record_type: (
        number,
        tuple(
            (attribute.name, field.put)
            for attribute, field in zip(fields(record_type), layout, strict=True)
        ),
    )
    for record_type, (number, layout) in _FORMATS.items()
}
_DECODERS = {
    number: (record_type, tuple(field.get for field in layout))
    for record_type, (number, layout) in _FORMATS.items()
}


def encode_record(record: MetadataRecord) -> bytes:
    """Type, size and fields of one record."""
    number, layout = _ENCODERS[type(record)]
    body = bytearray()
    for name, put in layout:
        put(body, getattr(record, name))
    out = bytearray()
    put_uvarint(out, number)
    put_uvarint(out, len(body))
    return bytes(out + body)


def decode_record(reader: FieldReader) -> MetadataRecord:
    """The inverse. Raises ValueError."""
    number = reader.uvarint()
    body = reader.nested()
    if number not in _DECODERS:
        raise ValueError(
            f"metadata record of unknown type {number}: written by a newer version of mqd?"
        )
    record_type, getters = _DECODERS[number]
    record: MetadataRecord = record_type(*(get(body) for get in getters))
    body.finish()
    return record
