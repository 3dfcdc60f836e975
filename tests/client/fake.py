"""A cluster of fake nodes in memory: a Network whose connections end in a small model of a broker.

It uses the declarations of mqd/protocol/apis, stores record batches, checks producer sequences as a
broker does, and can misbehave on request: `script` takes, for an API, the actions for the next
requests.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import trio

from mqd.errors import ErrorCode, ProtocolError
from mqd.io.net import Listener, Poller
from mqd.protocol.apis import by_key
from mqd.protocol.batch import BASE_OFFSET_POSITION, parse_header
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.frame import FrameReader
from mqd.protocol.record_reader import Record, iterate_records
from mqd.protocol.request_header import decode_request_header
from mqd.protocol.schema import encode_response_header
from mqd.types import TopicPartition
from tests.client.fake_access import HANDLERS, FakeAccess
from tests.client.fake_coordinator import (
    COORDINATOR_APIS,
    FakeCoordinator,
    FakeGroup,
    FakeTransaction,
)
from tests.client.fake_share import SHARE_APIS, FakeShare, FakeShareBroker

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS = 0, 1, 2, 3, 18
CREATE_TOPICS, DELETE_TOPICS, INIT_PRODUCER_ID = 19, 20, 22
(
    ELECT_LEADERS,
    ALTER_REASSIGNMENTS,
    LIST_REASSIGNMENTS,
    DESCRIBE_QUORUM,
    UNREGISTER_BROKER,
    DESCRIBE_PARTITIONS,
) = 43, 45, 46, 55, 64, 75
SERVED = (
    *(
        PRODUCE,
        FETCH,
        LIST_OFFSETS,
        METADATA,
        API_VERSIONS,
        CREATE_TOPICS,
        DELETE_TOPICS,
        21,
        INIT_PRODUCER_ID,
        32,
        35,
        37,
        44,
        57,
        60,
        61,
    ),
    *(
        ELECT_LEADERS,
        ALTER_REASSIGNMENTS,
        LIST_REASSIGNMENTS,
        DESCRIBE_QUORUM,
        UNREGISTER_BROKER,
        DESCRIBE_PARTITIONS,
    ),
    *COORDINATOR_APIS,
    *SHARE_APIS,
    *HANDLERS,
)

Response = dict[str, Any]
Action = Callable[["FakeBroker", Any], "Response | Hang | HangUp | Raw | None"]


class Hang:
    """No response. With `after`, the request is carried out."""

    def __init__(self, *, after: bool = False) -> None:
        self.after = after


class HangUp:
    """The connection ends without a response. With `after`, the request is carried out first."""

    def __init__(self, *, after: bool = False) -> None:
        self.after = after


class Raw:
    """These bytes as the body of the response; with `version`, that version decides the format of
    the header.
    """

    def __init__(self, body: bytes) -> None:
        self.body = body


class MemoryStream:
    """One end of a connection. `chunk` bytes at most arrive at a time."""

    def __init__(self, chunk: int = 1 << 20) -> None:
        self.other: MemoryStream
        self.chunk = chunk
        self.closed = False
        self.sent_calls = 0
        self._incoming = bytearray()
        self._ended = False
        self._changed = trio.Event()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def receive_into(self, view: memoryview) -> int:
        await trio.lowlevel.checkpoint()
        while not self._incoming and not self._ended:
            await self._changed.wait()
        if self.closed:
            raise OSError("closed on this side")
        taken = self._incoming[: min(len(view), self.chunk)]
        view[: len(taken)] = taken
        del self._incoming[: len(taken)]
        return len(taken)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        self.sent_calls += 1
        if self.closed or self.other.closed:
            raise BrokenPipeError("the other side is closed")
        self.other._incoming += data
        self.other._wake()

    def close(self) -> None:
        self.closed = True
        self._ended = True
        self.other._ended = True
        self._wake()
        self.other._wake()


def stream_pair(chunk: int = 1 << 20) -> tuple[MemoryStream, MemoryStream]:
    """Two connected ends."""
    left, right = MemoryStream(chunk), MemoryStream(chunk)
    left.other, right.other = right, left
    return left, right


@dataclass
class FakePartition:
    """Batches with their offsets, and the last sequences of producers."""

    batches: list[bytearray] = field(default_factory=list)
    start: int = 0
    end: int = 0
    leader: int = 1
    leader_epoch: int = 0
    replicas: list[int] = field(default_factory=list)
    """Empty: only the leader has the records."""
    isr: list[int] | None = None
    """None: all replicas are in sync."""
    elr: list[int] = field(default_factory=list)
    adding: list[int] = field(default_factory=list)
    removing: list[int] = field(default_factory=list)
    producers: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)
    """producer id -> (epoch, first sequence, count, base offset) of its last batch"""
    recent: dict[tuple[int, int, int], int] = field(default_factory=dict)
    """(producer id, epoch, first sequence) -> base offset of every batch, where a broker
    keeps five
    """
    open: dict[int, int] = field(default_factory=dict)
    """producer id -> first offset of its open transaction"""
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """(producer id, first offset, offset of the marker)"""

    @property
    def last_stable_offset(self) -> int:
        return min(self.open.values(), default=self.end)

    def end_transaction(self, producer_id: int, epoch: int, committed: bool) -> None:
        """Write a marker."""
        first = self.open.pop(producer_id, None)
        if first is None:
            return
        if not committed:
            self.aborted.append((producer_id, first, self.end))
        marker = Record(0, 0, b"\0\0\0" + bytes([committed]), b"\0\0\0\0\0\0")
        self.batches.append(
            build_batch(
                [marker],
                base_offset=self.end,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=-1,
                transactional=True,
                control=True,
            )
        )
        self.end += 1

    @property
    def held(self) -> list[int]:
        return self.replicas or [self.leader]

    @property
    def in_sync(self) -> list[int]:
        return self.held if self.isr is None else self.isr

    def append(self, data: bytes | bytearray | memoryview) -> tuple[int, int]:
        """(error code, base offset)"""
        batch = bytearray(data)
        header = parse_header(batch)
        if header.producer_id >= 0:
            last = self.producers.get(header.producer_id)
            if last is not None:
                epoch, sequence, count, _ = last
                if header.producer_epoch < epoch:
                    return int(ErrorCode.INVALID_PRODUCER_EPOCH), -1
                known = self.recent.get(
                    (header.producer_id, header.producer_epoch, header.base_sequence)
                )
                if known is not None:
                    return 0, known
                if header.base_sequence != (
                    sequence + count if header.producer_epoch == epoch else 0
                ):
                    return int(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), -1
            elif header.base_sequence != 0:
                return int(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), -1
            self.recent[header.producer_id, header.producer_epoch, header.base_sequence] = self.end
            self.producers[header.producer_id] = (
                header.producer_epoch,
                header.base_sequence,
                header.records_count,
                self.end,
            )
        batch[BASE_OFFSET_POSITION : BASE_OFFSET_POSITION + 8] = self.end.to_bytes(8, "big")
        base = self.end
        if header.is_transactional:
            self.open.setdefault(header.producer_id, base)
        self.batches.append(batch)
        self.end += header.records_count
        return 0, base

    def values(self) -> list[bytes | None]:
        return [record.value for batch in self.batches for record in iterate_records(batch)]


CONFIG_NOTICES = {
    "preallocate": "Ignored by mqd: no use. ",
    "background.threads": "Ignored by mqd: no use. ",
    "compression.zstd.level": "Limited by mqd: the largest effective value is 9. ",
}
GROUP_DEFAULTS = {"consumer.heartbeat.interval.ms": "5000", "consumer.session.timeout.ms": "45000"}


def quorum_row(node_id: int, end: int = 10, now: int = 100_000) -> Response:
    """A replica of the metadata log, whose last fetch and last catch-up were at `now`."""
    return {
        "replica_id": node_id,
        "log_end_offset": end,
        "last_fetch_timestamp": now,
        "last_caught_up_timestamp": now,
    }


class FakeCluster:
    """A Network, and the state that its brokers share."""

    def __init__(self, nursery: trio.Nursery, *, nodes: int = 1, chunk: int = 1 << 20) -> None:
        self.nursery = nursery
        self.chunk = chunk
        self.topics: dict[str, list[FakePartition]] = {}
        self.ids: dict[str, UUID] = {}
        self.configs: dict[tuple[int, str], dict[str, str]] = {}
        self.brokers = {node_id: FakeBroker(self, node_id) for node_id in range(1, nodes + 1)}
        self.addresses = {node_id: ("fake", 9000 + node_id) for node_id in self.brokers}
        self.down: set[int] = set()
        self.connects = 0
        self.auto_create = False
        self.controller = 1
        self.fenced: set[int] = set()
        self.quorum: dict[str, Any] = {
            "leader_id": 1,
            "leader_epoch": 3,
            "high_watermark": 10,
            "current_voters": [quorum_row(1)],
        }
        self.moves_hang = False
        """Reassignments stay under way until they are cancelled."""
        self.rates: list[int] = []
        """Throttle rates that were set on nodes, in order."""
        self.next_producer_id = 1000
        self.coordinator = 1
        """The coordinator of every group and transactional id."""
        self.groups: dict[str, FakeGroup] = {}
        self.pending_members: set[str] = set()
        self.commits: list[tuple[str, int]] = []
        """(group, error code) of every OffsetCommit"""
        self.transactions: dict[str, FakeTransaction] = {}
        self.transaction_version = 2
        self.features: dict[str, tuple[int, int, int]] = {}
        """Other features, by name: finalized, lowest and newest level."""
        self.shares: dict[str, FakeShare] = {}
        self.share_changed = trio.Event()
        self.access = FakeAccess()
        self.tells_of_rebalances = True
        """Like mqd, unlike Apache Kafka."""

    @property
    def one(self) -> FakeBroker:
        return self.brokers[1]

    def add_topic(self, name: str, partitions: int = 1) -> list[FakePartition]:
        made = [FakePartition(leader=1 + index % len(self.brokers)) for index in range(partitions)]
        self.topics[name] = made
        self.ids[name] = UUID(int=len(self.ids) + 100)
        return made

    def partition(self, tp: TopicPartition) -> FakePartition:
        return self.topics[tp.topic][tp.partition]

    def share_wake(self) -> None:
        """Records may be available for share groups."""
        self.share_changed.set()
        self.share_changed = trio.Event()

    async def connect(self, host: str, port: int, *, timeout: float = 10.0) -> MemoryStream:
        await trio.lowlevel.checkpoint()
        self.connects += 1
        node_id = port - 9000
        if node_id not in self.brokers or node_id in self.down:
            raise ConnectionRefusedError(111, "Connection refused")
        ours, theirs = stream_pair(self.chunk)
        self.nursery.start_soon(self.brokers[node_id].serve, theirs)
        return ours

    async def listen(self, host: str, port: int) -> Listener:
        raise NotImplementedError

    def poller(self) -> Poller:
        raise NotImplementedError


class FakeBroker(FakeCoordinator, FakeShareBroker):
    """One node."""

    def __init__(self, cluster: FakeCluster, node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.requests: list[tuple[int, int]] = []
        """(API key, version) of every request, in order."""
        self.versions = {
            key: api.advertised or api.versions
            for key in SERVED
            if (api := by_key(key)) is not None
        }
        self.actions: dict[int, deque[Action]] = defaultdict(deque)
        self.streams: list[MemoryStream] = []
        self.changed = trio.Event()

    def script(self, key: int, *actions: Any) -> None:
        """Set the actions for the next requests of an API: a response, Hang(), HangUp(), Raw(), or
        a function of (broker, request).
        """
        for action in actions:
            self.actions[key].append(action if callable(action) else lambda *_, a=action: a)

    def hang_up_all(self) -> None:
        for stream in self.streams:
            stream.close()

    async def serve(self, stream: MemoryStream) -> None:
        self.streams.append(stream)
        frames = FrameReader()
        buffer = memoryview(bytearray(65536))
        while not stream.closed:
            try:
                received = await stream.receive_into(buffer)
            except OSError:
                return
            if not received:
                stream.close()
                return
            frames.receive_data(buffer[:received])
            while (frame := frames.next_frame()) is not None:
                if not await self._respond(stream, frame):
                    return

    async def _respond(self, stream: MemoryStream, frame: memoryview) -> bool:
        header = decode_request_header(frame)
        api = by_key(header.api_key)
        assert api is not None
        version = header.api_version
        self.requests.append((header.api_key, version))
        lowest, highest = self.versions[header.api_key]
        if not lowest <= version <= highest:
            if header.api_key != API_VERSIONS:
                raise ProtocolError(f"{api.name} v{version} was not offered")
            response: Any = {
                "error_code": 35,
                "api_keys": [{"api_key": 18, "min_version": lowest, "max_version": highest}],
            }
            version = 0
        else:
            request = api.decode_request(version, frame, header.body_position)
            request["version"] = version
            actions = self.actions[header.api_key]
            result = actions.popleft()(self, request) if actions else None
            if isinstance(result, Hang | HangUp):
                if result.after:
                    await self._handled(header.api_key, request)
                if isinstance(result, HangUp):
                    stream.close()
                return isinstance(result, Hang)
            response = (
                result if result is not None else await self._handled(header.api_key, request)
            )
        if response is None:
            return True
        body = (
            response.body if isinstance(response, Raw) else api.encode_response(version, response)
        )
        response = encode_response_header(api, version, header.correlation_id) + body
        try:
            await stream.send_all(len(response).to_bytes(4, "big") + response)
        except OSError:
            return False
        return True

    # -- the model

    async def _handled(self, key: int, request: Any) -> Any:
        if key in HANDLERS:
            return await self.cluster.access.respond(key, request)
        return await getattr(self, f"_on_{key}")(request)

    async def _on_18(self, request: Any) -> Response:
        rows = [
            {"api_key": key, "min_version": low, "max_version": high}
            for key, (low, high) in sorted(self.versions.items())
        ]
        level = self.cluster.transaction_version
        feature = {
            "name": "transaction.version",
            "max_version_level": level,
            "min_version_level": level,
        }
        features = [feature] if level else []
        levels = self.cluster.features.items()
        features += [
            {"name": name, "max_version_level": level, "min_version_level": level}
            for name, (level, _, _) in levels
            if level
        ]
        supported = [
            {"name": name, "min_version": low, "max_version": high}
            for name, (_, low, high) in levels
        ]
        return {"api_keys": rows, "finalized_features": features, "supported_features": supported}

    async def _on_57(self, request: Any) -> Response:
        wanted = {row.feature: row.max_version_level for row in request.feature_updates}
        if any(
            level > self.cluster.features.get(name, (0, 0, 0))[2] for name, level in wanted.items()
        ):
            return {"error_code": 95, "error_message": "This version does not support it."}
        if not request.validate_only:
            self.cluster.features |= {
                name: (level, *self.cluster.features[name][1:]) for name, level in wanted.items()
            }
        return {"error_code": 0, "error_message": None}

    async def _on_3(self, request: Any) -> Response:
        cluster = self.cluster
        names = (
            list(cluster.topics) if request.topics is None else [row.name for row in request.topics]
        )
        topics = []
        for name in names:
            if name not in cluster.topics:
                topics.append({"name": name, "error_code": 3})
                if cluster.auto_create and request.allow_auto_topic_creation:
                    cluster.add_topic(name)
                continue
            partitions = [
                {
                    "partition_index": index,
                    "leader_id": each.leader,
                    "leader_epoch": each.leader_epoch,
                    "replica_nodes": each.held,
                    "isr_nodes": each.in_sync,
                }
                for index, each in enumerate(cluster.topics[name])
            ]
            topics.append({"name": name, "topic_id": cluster.ids[name], "partitions": partitions})
        brokers = [
            {"node_id": node, "host": host, "port": port}
            for node, (host, port) in cluster.addresses.items()
        ]
        return {
            "brokers": brokers,
            "cluster_id": "fake",
            "controller_id": cluster.controller,
            "topics": topics,
        }

    def _name(self, row: Any, attribute: str = "name") -> str:
        given: str = row[attribute]
        return given or next(
            name for name, topic_id in self.cluster.ids.items() if topic_id == row.topic_id
        )

    async def _on_0(self, request: Any) -> Response | None:
        responses = []
        for topic in request.topic_data:
            rows = []
            for row in topic.partition_data:
                partition = self.cluster.topics[self._name(topic)][row.index]
                if partition.leader != self.node_id:
                    rows.append({"index": row.index, "error_code": 6, "base_offset": -1})
                    continue
                code, offset = self._append(
                    request, TopicPartition(self._name(topic), row.index), row.records
                )
                rows.append({"index": row.index, "error_code": code, "base_offset": offset})
            responses.append(
                {"name": topic.name, "topic_id": topic.topic_id, "partition_responses": rows}
            )
        self._notify()
        return {"responses": responses} if request.acks else None

    def _notify(self) -> None:
        for broker in self.cluster.brokers.values():
            broker.changed.set()
            broker.changed = trio.Event()

    def _append(self, request: Any, tp: TopicPartition, records: memoryview) -> tuple[int, int]:
        """Under version 2 the first record adds a partition to the transaction; under version 1 it
        must have been added before.
        """
        found = (
            self.cluster.transactions.get(request.transactional_id)
            if request.transactional_id
            else None
        )
        if found is not None:
            header = parse_header(records)
            if header.producer_epoch != found.epoch:
                return int(ErrorCode.INVALID_PRODUCER_EPOCH), -1
            if request.version >= 12:
                found.state = "Ongoing"
                found.partitions.add(tp)
            elif tp not in found.partitions:
                return int(ErrorCode.INVALID_TXN_STATE), -1
        appended: tuple[int, int] = self.cluster.partition(tp).append(records)
        return appended

    async def _on_22(self, request: Any) -> Response:
        if request.transactional_id is not None:
            return self.init_transactional(request)
        self.cluster.next_producer_id += 1
        return {"producer_id": self.cluster.next_producer_id, "producer_epoch": 0}

    async def _on_1(self, request: Any) -> Response:
        with trio.move_on_after(request.max_wait_ms / 1000):
            while True:
                changed = self.changed
                response = self._read(request)
                if any(
                    row["records"] or row["error_code"]
                    for topic in response["responses"]
                    for row in topic["partitions"]
                ):
                    return response
                await changed.wait()
        return self._read(request)

    def _read(self, request: Any) -> Response:
        responses = []
        for topic in request.topics:
            rows = []
            for row in topic.partitions:
                partition = self.cluster.topics[self._name(topic, "topic")][row.partition]
                code = 0 if partition.start <= row.fetch_offset <= partition.end else 1
                if partition.leader != self.node_id:
                    code = 6
                data = bytearray()
                end = partition.last_stable_offset if request.isolation_level else partition.end
                for batch in partition.batches if not code else ():
                    fits = not data or len(data) + len(batch) <= row.partition_max_bytes
                    if fits and row.fetch_offset <= parse_header(batch).last_offset < end:
                        data += batch
                response: Response = {
                    "partition_index": row.partition,
                    "error_code": code,
                    "high_watermark": partition.end,
                }
                response |= {
                    "last_stable_offset": partition.last_stable_offset,
                    "records": bytes(data),
                }
                aborted = [each for each in partition.aborted if each[2] >= row.fetch_offset]
                response["aborted_transactions"] = [
                    {"producer_id": each[0], "first_offset": each[1]} for each in aborted
                ]
                rows.append(response)
            responses.append({"topic": topic.topic, "topic_id": topic.topic_id, "partitions": rows})
        return {"responses": responses}

    async def _on_2(self, request: Any) -> Response:
        topics = []
        for topic in request.topics:
            rows = []
            for row in topic.partitions:
                partition = self.cluster.topics[topic.name][row.partition_index]
                response = {
                    "partition_index": row.partition_index,
                    "timestamp": -1,
                    "offset": -1,
                    "leader_epoch": partition.leader_epoch,
                }
                if partition.leader != self.node_id:
                    response["error_code"] = 6
                elif row.timestamp == -1:
                    response["offset"] = (
                        partition.last_stable_offset if request.isolation_level else partition.end
                    )
                elif row.timestamp == -2:
                    response["offset"] = partition.start
                else:
                    found = [
                        r
                        for b in partition.batches
                        for r in iterate_records(b)
                        if r.timestamp >= row.timestamp
                    ]
                    if found:
                        response |= {"offset": found[0].offset, "timestamp": found[0].timestamp}
                rows.append(response)
            topics.append({"name": topic.name, "partitions": rows})
        return {"topics": topics}

    async def _on_19(self, request: Any) -> Response:
        rows = []
        for topic in request.topics:
            code = (
                41
                if self.cluster.controller != self.node_id
                else 36
                if topic.name in self.cluster.topics
                else 0
            )
            if not code and not request.validate_only:
                self.cluster.add_topic(topic.name, max(topic.num_partitions, 1))
                self.cluster.configs[2, topic.name] = {row.name: row.value for row in topic.configs}
            rows.append(
                {
                    "name": topic.name,
                    "error_code": code,
                    "num_partitions": max(topic.num_partitions, 1),
                    "replication_factor": 1,
                }
            )
        return {"topics": rows}

    async def _on_20(self, request: Any) -> Response:
        names = [topic.name for topic in request.topics] or request.topic_names
        return {
            "responses": [
                {"name": name, "error_code": 0 if self.cluster.topics.pop(name, None) else 3}
                for name in names
            ]
        }

    async def _on_37(self, request: Any) -> Response:
        rows = []
        for topic in request.topics:
            partitions = self.cluster.topics.get(topic.name)
            code = 3 if partitions is None else 0 if topic.count > len(partitions) else 37
            if partitions is not None and not code and not request.validate_only:
                partitions += [FakePartition() for _ in range(topic.count - len(partitions))]
            rows.append({"name": topic.name, "error_code": code})
        return {"results": rows}

    async def _on_32(self, request: Any) -> Response:
        results = []
        for row in request.resources:
            there = row.resource_type != 2 or row.resource_name in self.cluster.topics
            changed = self.cluster.configs.get((row.resource_type, row.resource_name), {})
            defaults = {"cleanup.policy": "delete", "retention.ms": "604800000"}
            values = (GROUP_DEFAULTS if row.resource_type == 32 else defaults) | changed
            source = {4: 2, 32: 8}.get(row.resource_type, 1)
            wanted = (
                values
                if not row.configuration_keys
                else [name for name in values if name in row.configuration_keys]
            )
            configs = [
                {
                    "name": name,
                    "value": values[name],
                    "config_source": source if name in changed else 5,
                    "documentation": f"{CONFIG_NOTICES.get(name, '')}about {name}",
                }
                for name in wanted
            ]
            response = {
                "resource_type": row.resource_type,
                "resource_name": row.resource_name,
                "error_code": 0 if there else 3,
            }
            results.append({**response, "configs": configs if there else []})
        return {"results": results}

    async def _on_44(self, request: Any) -> Response:
        responses = []
        for row in request.resources:
            changed = self.cluster.configs.setdefault((row.resource_type, row.resource_name), {})
            code = 40 if any(change.value == "bad" for change in row.configs) else 0
            for change in row.configs if not code and not request.validate_only else ():
                if change.name.endswith("throttled.rate") and change.value is not None:
                    self.cluster.rates.append(int(change.value))
                if change.config_operation == 0:
                    changed[change.name] = change.value
                elif change.config_operation == 1:
                    changed.pop(change.name, None)
                elif change.config_operation == 2:
                    changed[change.name] = ",".join(
                        filter(None, [changed.get(change.name, ""), change.value])
                    )
                else:
                    changed[change.name] = ",".join(
                        each for each in changed[change.name].split(",") if each != change.value
                    )
            message = "a bad value" if code else None
            responses.append(
                {
                    "error_code": code,
                    "error_message": message,
                    "resource_type": row.resource_type,
                    "resource_name": row.resource_name,
                }
            )
        return {"responses": responses}

    async def _on_21(self, request: Any) -> Response:
        topics = []
        for topic in request.topics:
            rows = []
            for row in topic.partitions:
                partition = self.cluster.topics[topic.name][row.partition_index]
                offset = partition.end if row.offset == -1 else row.offset
                code = 0 if offset <= partition.end else 1
                if not code:
                    partition.start = max(partition.start, offset)
                rows.append(
                    {
                        "partition_index": row.partition_index,
                        "low_watermark": partition.start,
                        "error_code": code,
                    }
                )
            topics.append({"name": topic.name, "partitions": rows})
        return {"topics": topics}

    async def _on_35(self, request: Any) -> Response:
        topics = [
            {
                "name": name,
                "partitions": [
                    {"partition_index": index, "partition_size": sum(map(len, each.batches))}
                    for index, each in enumerate(partitions)
                ],
            }
            for name, partitions in self.cluster.topics.items()
        ]
        broken = {"error_code": 56, "log_dir": "/broken"}
        return {
            "results": [
                {"log_dir": "/data", "topics": topics, "total_bytes": 100, "usable_bytes": 50},
                broken,
            ]
        }

    async def _on_61(self, request: Any) -> Response:
        topics = []
        for topic in request.topics:
            rows = []
            for index in topic.partition_indexes:
                producers = self.cluster.topics[topic.name][index].producers
                started = self.cluster.topics[topic.name][index].open
                active = [
                    {
                        "producer_id": one,
                        "producer_epoch": epoch,
                        "last_sequence": sequence + count - 1,
                        "last_timestamp": 5000,
                        "current_txn_start_offset": started.get(one, -1),
                    }
                    for one, (epoch, sequence, count, _) in producers.items()
                ]
                rows.append({"partition_index": index, "active_producers": active})
            topics.append({"name": topic.name, "partitions": rows})
        return {"topics": topics}

    async def _on_60(self, request: Any) -> Response:
        fenced = self.cluster.fenced
        brokers = [
            {"broker_id": node, "host": host, "port": port, "is_fenced": node in fenced}
            for node, (host, port) in self.cluster.addresses.items()
        ]
        return {"cluster_id": "fake", "controller_id": self.cluster.controller, "brokers": brokers}

    def _found(self, topic: str, index: int) -> FakePartition | None:
        partitions = self.cluster.topics.get(topic, [])
        return partitions[index] if index < len(partitions) else None

    async def _on_43(self, request: Any) -> Response:
        wanted = request.topic_partitions
        if wanted is None:
            named = [
                (name, index)
                for name, partitions in self.cluster.topics.items()
                for index in range(len(partitions))
            ]
        else:
            named = [(topic.topic, index) for topic in wanted for index in topic.partitions]
        results: dict[str, list[Response]] = {}
        for name, index in named:
            partition = self._found(name, index)
            code = 0
            if partition is None:
                code = 3
            elif request.election_type == 1:
                living = [node for node in partition.held if node not in self.cluster.fenced]
                code = 84 if partition.leader >= 0 else 0 if living else 83
                partition.leader = living[0] if not code else partition.leader
            elif partition.leader == partition.held[0]:
                code = 84
            elif partition.held[0] not in partition.in_sync:
                code = 80
            else:
                partition.leader = partition.held[0]
            if wanted is not None or code != 84:
                results.setdefault(name, []).append({"partition_id": index, "error_code": code})
        return {
            "replica_election_results": [
                {"topic": name, "partition_result": rows} for name, rows in results.items()
            ]
        }

    async def _on_45(self, request: Any) -> Response:
        responses = []
        for topic in request.topics:
            rows = []
            for row in topic.partitions:
                partition = self._found(topic.name, row.partition_index)
                rows.append(
                    {
                        "partition_index": row.partition_index,
                        "error_code": self._reassign(partition, row.replicas),
                    }
                )
            responses.append({"name": topic.name, "partitions": rows})
        return {"responses": responses}

    def _reassign(self, partition: FakePartition | None, target: list[int] | None) -> int:
        if partition is None:
            return 3
        before = [node for node in partition.held if node not in partition.adding]
        if target is None:
            if not partition.adding and not partition.removing:
                return 85
            partition.replicas, partition.adding, partition.removing = before, [], []
            return 0
        if any(node not in self.cluster.addresses for node in target):
            return 39
        if self.cluster.moves_hang:
            partition.isr = list(partition.in_sync)
            partition.adding = [node for node in target if node not in before]
            partition.removing = [node for node in before if node not in target]
            partition.replicas = [*target, *partition.removing]
        else:
            partition.replicas, partition.isr = list(target), None
            partition.leader = partition.leader if partition.leader in target else target[0]
        return 0

    async def _on_46(self, request: Any) -> Response:
        topics = []
        for name, partitions in self.cluster.topics.items():
            rows = [
                {
                    "partition_index": index,
                    "replicas": each.held,
                    "adding_replicas": each.adding,
                    "removing_replicas": each.removing,
                }
                for index, each in enumerate(partitions)
                if each.adding or each.removing
            ]
            if rows:
                topics.append({"name": name, "partitions": rows})
        return {"topics": topics}

    async def _on_55(self, request: Any) -> Response:
        (topic,) = request.topics
        return {"topics": [{"topic_name": topic.topic_name, "partitions": [self.cluster.quorum]}]}

    async def _on_64(self, request: Any) -> Response:
        known = self.cluster.addresses.pop(request.broker_id, None) is not None
        return {"error_code": 0 if known else 102}

    async def _on_75(self, request: Any) -> Response:
        names = (
            sorted(self.cluster.topics)
            if not request.topics
            else [row.name for row in request.topics]
        )
        rows: list[tuple[str, int]] = []
        for name in names:
            rows += [(name, index) for index in range(len(self.cluster.topics.get(name, ())))]
        if request.cursor is not None:
            rows = [
                row
                for row in rows
                if row >= (request.cursor.topic_name, request.cursor.partition_index)
            ]
        page, rest = (
            rows[: request.response_partition_limit],
            rows[request.response_partition_limit :],
        )
        topics = [
            {"name": name, "error_code": 3, "partitions": []}
            for name in names
            if name not in self.cluster.topics
        ]
        for name in dict.fromkeys(name for name, _ in page):
            partitions = [
                self._described(index, self.cluster.topics[name][index])
                for each, index in page
                if each == name
            ]
            topics.append(
                {"name": name, "topic_id": self.cluster.ids[name], "partitions": partitions}
            )
        cursor = {"topic_name": rest[0][0], "partition_index": rest[0][1]} if rest else None
        return {"topics": topics, "next_cursor": cursor}

    def _described(self, index: int, partition: FakePartition) -> Response:
        return {
            "partition_index": index,
            "leader_id": partition.leader,
            "leader_epoch": partition.leader_epoch,
            "replica_nodes": partition.held,
            "isr_nodes": partition.in_sync,
            "eligible_leader_replicas": partition.elr,
            "last_known_elr": [],
            "offline_replicas": [node for node in partition.held if node in self.cluster.fenced],
        }
