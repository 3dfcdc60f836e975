"""What the metadata log is made of: records, and commands that carry them.

A record is the unit of atomicity: one fact that holds as a whole or not at all. A command is what
one Raft entry holds: the index of the command that its decider had seen, and records. Bytes are
ours (no pickle, no reflection):

    command  = format 0x01, encoding (0 plain, 1 zlib), body
    body     = uvarint base_index, uvarint count, then per record:
               uvarint type, uvarint size, fields
    uvarint  = LEB128; string = uvarint size, UTF-8; a nullable string has size + 1, null is 0;
               uuid = 16 bytes

Invariants: decode(encode(c)) == c; a command is never larger than limits.RAFT_COMMAND_BYTES_MAX;
decompression is bounded before it allocates; an unknown format or record type is an error, never
skipped.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from mqd.errors import ErrorCode, MqError
from mqd.limits import (
    CONFIG_RESOURCE_BYTES_MAX,
    CONFIG_VALUE_BYTES_MAX,
    METADATA_COMMAND_DECOMPRESSED_MAX,
    RAFT_COMMAND_BYTES_MAX,
)
from mqd.types import NO_EPOCH, NO_NODE, NodeId

_FORMAT = 1
_PLAIN = 0
_ZLIB = 1
_COMPRESS_FROM_BYTES = 512


@dataclass(frozen=True, slots=True)
class FormatCluster:
    """The first record of a cluster's life: which cluster this log belongs to, and the
    feature levels it starts with.
    """

    cluster_id: str
    features: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class RegisterBroker:
    """A node came up.

    It is fenced until it sends a heartbeat; its broker epoch is the index of this command.
    """

    node_id: NodeId
    incarnation: UUID
    host: str
    port: int
    rack: str | None
    vouched_epoch: int = NO_EPOCH
    """The registration that it named, where that one vouches for its logs; see `BrokerImage`."""


@dataclass(frozen=True, slots=True)
class SetBrokerFencing:
    """Fenced: leads nothing, is in no answer to clients. Unfenced: alive."""

    node_id: NodeId
    broker_epoch: int
    fenced: bool


class Placement(NamedTuple):
    """One new partition. The in-sync replicas are the replicas that were alive at its creation."""

    replicas: tuple[NodeId, ...]
    leader: NodeId
    isr: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """A topic with its partitions 0..n-1 and its overrides, whole."""

    name: str
    topic_id: UUID
    partitions: tuple[Placement, ...]
    configs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """Removal by id: a topic of the same name made later is another topic."""

    topic_id: UUID


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """More partitions, from index `first`, which is the count before."""

    topic_id: UUID
    first: int
    partitions: tuple[Placement, ...]


class PartitionChange(NamedTuple):
    """A new leader and new in-sync replicas of one partition; its leader epoch and partition epoch
    rise by one.

    Written before there was more than one replica; read still.
    """

    partition: int
    leader: NodeId
    isr: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class ChangePartitions:
    """Leadership of partitions of one topic."""

    topic_id: UUID
    changes: tuple[PartitionChange, ...]


class PartitionUpdate(NamedTuple):
    """What changed of one partition; None is what stays. The partition epoch rises by one.

    The leader epoch rises by one where the leader changes or a replica leaves the replica set.
    """

    partition: int
    leader: NodeId | None = None
    isr: tuple[NodeId, ...] | None = None
    elr: tuple[NodeId, ...] | None = None
    last_known_elr: tuple[NodeId, ...] | None = None
    replicas: tuple[NodeId, ...] | None = None
    adding: tuple[NodeId, ...] | None = None
    removing: tuple[NodeId, ...] | None = None


@dataclass(frozen=True, slots=True)
class UpdatePartitions:
    """Changes of partitions of one topic, which ascend."""

    topic_id: UUID
    updates: tuple[PartitionUpdate, ...]


@dataclass(frozen=True, slots=True)
class SetFeature:
    """The level of one feature is another from here on; 0: it is finalized no more."""

    name: str
    level: int


@dataclass(frozen=True, slots=True)
class ShutDownBroker:
    """A broker is about to stop: it leads nothing and joins no ISR from now on, but still
    answers.
    """

    node_id: NodeId
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class NoteDiskSerial:
    """The disks of a broker have at least this serial (log/disk/log_end_checkpoint.py). An older
    copy of a disk has a lower one. Metadata version 2.
    """

    node_id: NodeId
    broker_epoch: int
    serial: int


@dataclass(frozen=True, slots=True)
class UnregisterBroker:
    """A broker that the cluster forgets. Its replicas stay where they are assigned."""

    node_id: NodeId
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class LoseReplicas:
    """These replicas of a broker hold nothing of use, until they are in sync again or the
    broker registers anew.
    """

    node_id: NodeId
    broker_epoch: int
    topic_id: UUID
    partitions: tuple[int, ...]
    """Ascending."""


@dataclass(frozen=True, slots=True)
class SetConfigs:
    """Overrides of one resource; a value of None removes the key.

    Types: "topic" and "node" ("" = every node).
    """

    resource_type: str
    resource_name: str
    changes: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class SetNextProducerId:
    """Every producer id below this one is given away for ever."""

    next_producer_id: int


Record = (
    FormatCluster
    | RegisterBroker
    | SetBrokerFencing
    | CreateTopic
    | DeleteTopic
    | AddPartitions
    | ChangePartitions
    | SetConfigs
    | SetNextProducerId
    | UpdatePartitions
    | ShutDownBroker
    | UnregisterBroker
    | LoseReplicas
    | SetFeature
    | NoteDiskSerial
)


class Command(NamedTuple):
    """`base_index`: the last command its decider had applied.

    It takes effect only right after that one.
    """

    base_index: int
    records: tuple[Record, ...]


class CommandTooLarge(Exception):
    """The records do not fit into one Raft entry, even compressed."""


def encode_command(command: Command) -> bytes:
    """Bytes for `RaftService.propose`. Raises CommandTooLarge."""
    body = bytearray()
    _put_uvarint(body, command.base_index)
    _put_uvarint(body, len(command.records))
    for record in command.records:
        body += encode_record(record)
    if len(body) > METADATA_COMMAND_DECOMPRESSED_MAX:
        raise CommandTooLarge(f"{len(body)} bytes before compression")
    encoded = bytes((_FORMAT, _PLAIN)) + body
    if len(body) >= _COMPRESS_FROM_BYTES:
        packed = bytes((_FORMAT, _ZLIB)) + zlib.compress(body, 6)
        if len(packed) < len(encoded):
            encoded = packed
    if len(encoded) > RAFT_COMMAND_BYTES_MAX:
        raise CommandTooLarge(f"{len(encoded)} bytes after compression")
    return encoded


def decode_command(data: bytes) -> Command:
    """The inverse. Raises ValueError for bytes that no `encode_command` wrote."""
    if len(data) < 2 or data[0] != _FORMAT:
        raise ValueError(
            f"metadata command of unknown format {bytes(data[:2]).hex()}: written by another "
            "version of mqd?"
        )
    body = bytes(data[2:])
    if data[1] == _ZLIB:
        inflater = zlib.decompressobj()
        try:
            body = inflater.decompress(body, METADATA_COMMAND_DECOMPRESSED_MAX)
        except zlib.error as error:
            raise ValueError(f"metadata command does not inflate: {error}") from error
        if not inflater.eof or inflater.unused_data:
            raise ValueError("metadata command inflates beyond its limit, is cut off or has a tail")
    elif data[1] != _PLAIN:
        raise ValueError(f"metadata command with unknown encoding {data[1]}")
    reader = _Reader(body)
    base_index = reader.uvarint()
    records = tuple(_decode_record(reader) for _ in range(reader.count()))
    reader.finish()
    return Command(base_index, records)


def check_fits(record: Record) -> None:
    """Raise POLICY_VIOLATION when one record alone is too large for a command.

    For decisions whose size a client chose.
    """
    try:
        encode_command(Command(_INDEX_LARGEST, (record,)))
    except CommandTooLarge as error:
        raise MqError(
            ErrorCode.POLICY_VIOLATION,
            f"one metadata record holds at most {RAFT_COMMAND_BYTES_MAX} bytes, this change "
            f"needs {error}; "
            "use fewer partitions, a regular assignment or shorter config values",
        ) from error


def check_overrides_fit(overrides: Mapping[str, str | None]) -> None:
    """Raise INVALID_CONFIG where the overrides of a resource, as they will be, are more
    than an answer can carry.
    """
    total = 0
    for name, value in overrides.items():
        if value is None:
            continue
        size = len(value.encode())
        if size > CONFIG_VALUE_BYTES_MAX:
            raise MqError(
                ErrorCode.INVALID_CONFIG,
                f"{name} has {size} bytes; a value has at most {CONFIG_VALUE_BYTES_MAX}.",
            )
        total += len(name.encode()) + size
    if total > CONFIG_RESOURCE_BYTES_MAX:
        raise MqError(
            ErrorCode.INVALID_CONFIG,
            f"Names and values take {total} bytes; a resource has at most "
            f"{CONFIG_RESOURCE_BYTES_MAX}.",
        )


def split_records(records: Sequence[Record]) -> list[tuple[Record, ...]]:
    """Cut into runs that each fit one command, in order. Each record fits (check_fits).

    Most decisions fit as they are. A record is atomic, so a prefix of the runs is always a sound
    state.
    """
    try:
        encode_command(Command(_INDEX_LARGEST, tuple(records)))
    except CommandTooLarge:
        assert len(records) > 1, type(records[0])
        middle = len(records) // 2
        return split_records(records[:middle]) + split_records(records[middle:])
    return [tuple(records)]


_INDEX_LARGEST = 2**63 - 1


def encode_record(record: Record) -> bytes:
    """Type, size and fields of one record."""
    number, put, _ = _CODECS[type(record)]
    fields = bytearray()
    put(fields, record)
    out = bytearray()
    _put_uvarint(out, number)
    _put_uvarint(out, len(fields))
    return bytes(out + fields)


def _decode_record(reader: _Reader) -> Record:
    number = reader.uvarint()
    fields = reader.nested()
    get = _DECODERS.get(number)
    if get is None:
        raise ValueError(
            f"metadata record of unknown type {number}: written by a newer version of mqd?"
        )
    record = get(fields)
    fields.finish()
    return record


# -- fields


def _put_uvarint(out: bytearray, value: int) -> None:
    assert value >= 0, value
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _put_string(out: bytearray, value: str) -> None:
    data = value.encode()
    _put_uvarint(out, len(data))
    out += data


def _put_nullable(out: bytearray, value: str | None) -> None:
    data = b"" if value is None else value.encode()
    _put_uvarint(out, 0 if value is None else len(data) + 1)
    out += data


def _put_node(out: bytearray, value: NodeId) -> None:
    _put_uvarint(out, value - NO_NODE)


def _put_nodes(out: bytearray, values: tuple[NodeId, ...]) -> None:
    _put_uvarint(out, len(values))
    for value in values:
        _put_uvarint(out, value)


def _put_placements(out: bytearray, partitions: tuple[Placement, ...]) -> None:
    """Compact, and regular for zlib: in-sync replicas are spelled out only where they are
    not all the replicas.
    """
    _put_uvarint(out, len(partitions))
    for replicas, leader, isr in partitions:
        _put_nodes(out, replicas)
        _put_node(out, leader)
        if isr == replicas:
            _put_uvarint(out, 0)
        else:
            _put_uvarint(out, 1)
            _put_nodes(out, isr)


class _Reader:
    """A bounded walk over bytes: every read is checked against what is left."""

    __slots__ = ("_data", "_end", "_position")

    def __init__(self, data: bytes, position: int = 0, end: int | None = None) -> None:
        self._data = data
        self._position = position
        self._end = len(data) if end is None else end

    def take(self, size: int) -> bytes:
        start = self._position
        if size > self._end - start:
            raise ValueError("metadata command is cut off")
        self._position = start + size
        return self._data[start : self._position]

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("metadata command holds a varint that never ends")

    def count(self) -> int:
        """Of elements that take at least one byte each."""
        value = self.uvarint()
        if value > self._end - self._position:
            raise ValueError("metadata command counts more elements than it has bytes")
        return value

    def nested(self) -> _Reader:
        size = self.uvarint()
        start = self._position
        if size > self._end - start:
            raise ValueError("metadata record is cut off")
        self._position = start + size
        return _Reader(self._data, start, self._position)

    def string(self) -> str:
        return self.take(self.uvarint()).decode()

    def nullable(self) -> str | None:
        size = self.uvarint()
        return self.take(size - 1).decode() if size else None

    def uuid(self) -> UUID:
        return UUID(bytes=self.take(16))

    def node(self) -> NodeId:
        return NodeId(self.uvarint() + NO_NODE)

    def nodes(self) -> tuple[NodeId, ...]:
        return tuple(NodeId(self.uvarint()) for _ in range(self.count()))

    def placements(self) -> tuple[Placement, ...]:
        return tuple(self._placement() for _ in range(self.count()))

    def _placement(self) -> Placement:
        replicas = self.nodes()
        leader = self.node()
        return Placement(replicas, leader, self.nodes() if self.uvarint() else replicas)

    def has_more(self) -> bool:
        return self._position < self._end

    def finish(self) -> None:
        if self._position != self._end:
            raise ValueError("metadata command has a tail")


# -- records: one pair of functions each


def _put_format_cluster(out: bytearray, record: FormatCluster) -> None:
    _put_string(out, record.cluster_id)
    _put_uvarint(out, len(record.features))
    for name, level in record.features:
        _put_string(out, name)
        _put_uvarint(out, level)


def _get_format_cluster(reader: _Reader) -> FormatCluster:
    return FormatCluster(
        reader.string(), tuple((reader.string(), reader.uvarint()) for _ in range(reader.count()))
    )


def _put_set_feature(out: bytearray, record: SetFeature) -> None:
    _put_string(out, record.name)
    _put_uvarint(out, record.level)


def _get_set_feature(reader: _Reader) -> SetFeature:
    return SetFeature(reader.string(), reader.uvarint())


def _put_register_broker(out: bytearray, record: RegisterBroker) -> None:
    _put_node(out, record.node_id)
    out += record.incarnation.bytes
    _put_string(out, record.host)
    _put_uvarint(out, record.port)
    _put_nullable(out, record.rack)
    if record.vouched_epoch != NO_EPOCH:
        _put_uvarint(out, record.vouched_epoch)


def _get_register_broker(reader: _Reader) -> RegisterBroker:
    known = reader.node(), reader.uuid(), reader.string(), reader.uvarint(), reader.nullable()
    return RegisterBroker(*known, reader.uvarint() if reader.has_more() else NO_EPOCH)


def _put_set_broker_fencing(out: bytearray, record: SetBrokerFencing) -> None:
    _put_node(out, record.node_id)
    _put_uvarint(out, record.broker_epoch)
    _put_uvarint(out, record.fenced)


def _get_set_broker_fencing(reader: _Reader) -> SetBrokerFencing:
    return SetBrokerFencing(reader.node(), reader.uvarint(), reader.uvarint() == 1)


def _put_create_topic(out: bytearray, record: CreateTopic) -> None:
    _put_string(out, record.name)
    out += record.topic_id.bytes
    _put_placements(out, record.partitions)
    _put_uvarint(out, len(record.configs))
    for name, value in record.configs:
        _put_string(out, name)
        _put_string(out, value)


def _get_create_topic(reader: _Reader) -> CreateTopic:
    return CreateTopic(
        reader.string(),
        reader.uuid(),
        reader.placements(),
        tuple((reader.string(), reader.string()) for _ in range(reader.count())),
    )


def _put_delete_topic(out: bytearray, record: DeleteTopic) -> None:
    out += record.topic_id.bytes


def _get_delete_topic(reader: _Reader) -> DeleteTopic:
    return DeleteTopic(reader.uuid())


def _put_add_partitions(out: bytearray, record: AddPartitions) -> None:
    out += record.topic_id.bytes
    _put_uvarint(out, record.first)
    _put_placements(out, record.partitions)


def _get_add_partitions(reader: _Reader) -> AddPartitions:
    return AddPartitions(reader.uuid(), reader.uvarint(), reader.placements())


def _put_change_partitions(out: bytearray, record: ChangePartitions) -> None:
    """Partitions ascend, so their indexes are written as distances: a run of them is a run
    of equal bytes.
    """
    out += record.topic_id.bytes
    _put_uvarint(out, len(record.changes))
    previous = -1
    for partition, leader, isr in record.changes:
        _put_uvarint(out, partition - previous - 1)
        _put_node(out, leader)
        _put_nodes(out, isr)
        previous = partition


def _get_change_partitions(reader: _Reader) -> ChangePartitions:
    topic_id = reader.uuid()
    changes = []
    previous = -1
    for _ in range(reader.count()):
        previous += reader.uvarint() + 1
        changes.append(PartitionChange(previous, reader.node(), reader.nodes()))
    return ChangePartitions(topic_id, tuple(changes))


_UPDATE_LISTS = len(PartitionUpdate._fields) - 2


def _put_update_partitions(out: bytearray, record: UpdatePartitions) -> None:
    """As above, and a bit for each field that changes: 1 the leader, 2 the ISR and so on."""
    out += record.topic_id.bytes
    _put_uvarint(out, len(record.updates))
    previous = -1
    for partition, leader, *lists in record.updates:
        _put_uvarint(out, partition - previous - 1)
        _put_uvarint(
            out,
            (leader is not None)
            | sum(2 << bit for bit, nodes in enumerate(lists) if nodes is not None),
        )
        if leader is not None:
            _put_node(out, leader)
        for nodes in lists:
            if nodes is not None:
                _put_nodes(out, nodes)
        previous = partition


def _get_update_partitions(reader: _Reader) -> UpdatePartitions:
    topic_id = reader.uuid()
    updates = []
    previous = -1
    for _ in range(reader.count()):
        previous += reader.uvarint() + 1
        fields = reader.uvarint()
        if fields >> 1 + _UPDATE_LISTS:
            raise ValueError(
                "metadata record changes unknown fields of a partition: written by a newer "
                "version of mqd?"
            )
        leader = reader.node() if fields & 1 else None
        lists = [reader.nodes() if fields & 2 << bit else None for bit in range(_UPDATE_LISTS)]
        updates.append(PartitionUpdate(previous, leader, *lists))
    return UpdatePartitions(topic_id, tuple(updates))


def _put_broker_epoch(
    out: bytearray, record: ShutDownBroker | UnregisterBroker | LoseReplicas | NoteDiskSerial
) -> None:
    _put_node(out, record.node_id)
    _put_uvarint(out, record.broker_epoch)


def _get_shut_down_broker(reader: _Reader) -> ShutDownBroker:
    return ShutDownBroker(reader.node(), reader.uvarint())


def _get_unregister_broker(reader: _Reader) -> UnregisterBroker:
    return UnregisterBroker(reader.node(), reader.uvarint())


def _put_note_disk_serial(out: bytearray, record: NoteDiskSerial) -> None:
    _put_broker_epoch(out, record)
    _put_uvarint(out, record.serial)


def _get_note_disk_serial(reader: _Reader) -> NoteDiskSerial:
    return NoteDiskSerial(reader.node(), reader.uvarint(), reader.uvarint())


def _put_lose_replicas(out: bytearray, record: LoseReplicas) -> None:
    _put_broker_epoch(out, record)
    out += record.topic_id.bytes
    _put_uvarint(out, len(record.partitions))
    previous = -1
    for partition in record.partitions:
        _put_uvarint(out, partition - previous - 1)
        previous = partition


def _get_lose_replicas(reader: _Reader) -> LoseReplicas:
    node_id, broker_epoch, topic_id = reader.node(), reader.uvarint(), reader.uuid()
    partitions: list[int] = []
    for _ in range(reader.count()):
        partitions.append((partitions[-1] if partitions else -1) + reader.uvarint() + 1)
    return LoseReplicas(node_id, broker_epoch, topic_id, tuple(partitions))


def _put_set_configs(out: bytearray, record: SetConfigs) -> None:
    _put_string(out, record.resource_type)
    _put_string(out, record.resource_name)
    _put_uvarint(out, len(record.changes))
    for name, value in record.changes:
        _put_string(out, name)
        _put_nullable(out, value)


def _get_set_configs(reader: _Reader) -> SetConfigs:
    return SetConfigs(
        reader.string(),
        reader.string(),
        tuple((reader.string(), reader.nullable()) for _ in range(reader.count())),
    )


def _put_set_next_producer_id(out: bytearray, record: SetNextProducerId) -> None:
    _put_uvarint(out, record.next_producer_id)


def _get_set_next_producer_id(reader: _Reader) -> SetNextProducerId:
    return SetNextProducerId(reader.uvarint())


_CODECS: dict[type, tuple[int, Callable[..., None], Callable[[_Reader], Record]]] = {
    FormatCluster: (1, _put_format_cluster, _get_format_cluster),
    RegisterBroker: (2, _put_register_broker, _get_register_broker),
    SetBrokerFencing: (3, _put_set_broker_fencing, _get_set_broker_fencing),
    CreateTopic: (4, _put_create_topic, _get_create_topic),
    DeleteTopic: (5, _put_delete_topic, _get_delete_topic),
    AddPartitions: (6, _put_add_partitions, _get_add_partitions),
    ChangePartitions: (7, _put_change_partitions, _get_change_partitions),
    SetConfigs: (8, _put_set_configs, _get_set_configs),
    SetNextProducerId: (9, _put_set_next_producer_id, _get_set_next_producer_id),
    UpdatePartitions: (10, _put_update_partitions, _get_update_partitions),
    ShutDownBroker: (11, _put_broker_epoch, _get_shut_down_broker),
    UnregisterBroker: (12, _put_broker_epoch, _get_unregister_broker),
    LoseReplicas: (13, _put_lose_replicas, _get_lose_replicas),
    SetFeature: (14, _put_set_feature, _get_set_feature),
    NoteDiskSerial: (15, _put_note_disk_serial, _get_note_disk_serial),
}
"""Numbers are the format: never reuse one."""

_DECODERS = {number: get for number, _, get in _CODECS.values()}
