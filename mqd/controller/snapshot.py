"""The metadata image as bytes and back: one JSON object, deflated (snapshot_json.py).

Equal images give equal bytes. Reading and writing are done in steps, so that a worker thread can do
them beside the event loop.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from mqd.controller.delta import Delta, difference
from mqd.controller.endpoints import BrokerEndpoint
from mqd.controller.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from mqd.controller.size import recount, recount_access, recount_groups
from mqd.controller.snapshot_json import (
    JsonReader,
    deflated,
    elements,
    in_order,
    inflate,
    json_rows,
    json_text,
)
from mqd.raft.snapshots import Work, all_steps
from mqd.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from mqd.security.quotas import QuotaEntity
from mqd.security.scram_credentials import ScramCredential, ScramMechanism
from mqd.types import NodeId

_SNAPSHOT_FORMAT = 2
_SNAPSHOT_FORMAT_OF_SECURITY = 3
_SNAPSHOT_FORMATS_READ = (1, 2, 3)
"""Format 1 lacks reassignments, controlled shutdowns and lost replicas. Format 3 has SCRAM
credentials, ACLs or client quotas, which exist only from metadata version 3 on (I49).
"""
_SNAPSHOT_KEYS = (
    "brokers",
    "cluster_id",
    "configs",
    "features",
    "format",
    "index",
    "next_producer_id",
    "topics",
)
_TOPICS = "topics"
_PARTITIONS = "partitions"
_LISTS = ("acls", "client_quotas", "configs", "lost", "scram_credentials")

# -- writing


def encode_snapshot(image: MetadataImage) -> bytes:
    """The whole image."""
    return b"".join(snapshot_pieces(image))


def snapshot_pieces(image: MetadataImage) -> Iterator[bytes]:
    """`encode_snapshot` in pieces.

    Their content is that of the time of this call. Any thread may make them, each in some
    milliseconds.
    """
    secured = (
        image.acls
        or image.client_quotas
        or image.scram_credentials
        or any(broker.endpoints for broker in image.brokers.values())
    )
    text = snapshot_text(
        version=_SNAPSHOT_FORMAT_OF_SECURITY if secured else _SNAPSHOT_FORMAT,
        index=image.index,
        cluster_id=image.cluster_id,
        features=dict(image.features),
        next_producer_id=image.next_producer_id,
        brokers=list(image.brokers.values()),
        topics=[
            (topic.name, topic.topic_id, tuple(topic.partitions)) for topic in image.topics.values()
        ],
        configs=list(image.configs.items()),
        lost_replicas=list(image.lost_replicas),
        acls=list(image.acls.items()),
        client_quotas=list(image.client_quotas.items()),
        scram_credentials=list(image.scram_credentials.items()),
    )
    return deflated(text)


def snapshot_text(
    *,
    version: int,
    index: int,
    cluster_id: str,
    features: dict[str, int],
    next_producer_id: int,
    brokers: list[BrokerImage],
    topics: list[tuple[str, UUID, tuple[PartitionImage, ...]]],
    configs: list[tuple[tuple[str, str], dict[str, str]]],
    lost_replicas: list[tuple[UUID, int, NodeId]],
    acls: list[tuple[UUID, Acl]],
    client_quotas: list[tuple[QuotaEntity, dict[str, float]]],
    scram_credentials: list[tuple[tuple[str, ScramMechanism], ScramCredential]],
) -> Iterator[str]:
    """One JSON object with its keys in order, in parts. The arguments must not change meanwhile."""
    broker_rows = [
        [
            b.node_id,
            b.host,
            b.port,
            b.rack,
            b.epoch,
            b.incarnation.hex,
            b.fenced,
            b.in_controlled_shutdown,
            b.vouched_epoch,
        ]
        + ([b.disk_serial] if b.disk_serial or b.endpoints else [])  # version 1 lacks it
        + ([b.endpoints] if b.endpoints else [])  # version 2 lacks them
        for b in sorted(brokers, key=lambda broker: broker.node_id)
    ]
    yield "{"
    if acls:
        rows = ([acl_id.hex, *acl] for acl_id, acl in in_order(acls))
        yield from _named_rows("acls", rows)
    yield f'"brokers":{json_text(broker_rows)},'
    if client_quotas:
        # a default has no name, and None does not compare with names
        ordered = in_order([(json_text(entity), quotas) for entity, quotas in client_quotas])
        yield from _named_rows(
            "client_quotas", ([json.loads(entity), quotas] for entity, quotas in ordered)
        )
    yield f'"cluster_id":{json_text(cluster_id)},"configs":['
    for number, (key, values) in enumerate(in_order(configs)):
        yield f"{',' if number else ''}{json_text([*key, values])}"
    yield f'],"features":{json_text(features)},"format":{version},"index":{index},"lost":['
    yield from json_rows(
        [topic_id.hex, partition, node_id]
        for topic_id, partition, node_id in in_order(lost_replicas)
    )
    yield f'],"next_producer_id":{next_producer_id},'
    if scram_credentials:
        yield from _named_rows(
            "scram_credentials",
            (
                [
                    *key,
                    credential.iterations,
                    credential.salt.hex(),
                    credential.stored_key.hex(),
                    credential.server_key.hex(),
                ]
                for key, credential in _credentials_in_order(scram_credentials)
            ),
        )
    yield '"topics":['
    for number, (name, topic_id, partitions) in enumerate(in_order(topics)):
        yield f'{"," if number else ""}[{json_text(name)},"{topic_id.hex}",['
        yield from json_rows(
            [
                p.leader,
                p.leader_epoch,
                p.partition_epoch,
                p.replicas,
                p.isr,
                p.elr,
                p.last_known_elr,
                p.adding,
                p.removing,
            ]
            for p in partitions
        )
        yield "]]"
    yield "]}"


def _named_rows(key: str, rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """A key whose value is an array, with the comma behind it."""
    yield f'"{key}":['
    yield from json_rows(rows)
    yield "],"


def _credentials_in_order(
    scram_credentials: list[tuple[tuple[str, ScramMechanism], ScramCredential]],
) -> Iterator[tuple[tuple[str, ScramMechanism], ScramCredential]]:
    """By user and mechanism: credentials themselves do not compare."""
    by_key = dict(scram_credentials)
    return ((key, by_key[key]) for key in in_order(list(by_key)))


# -- reading


def restore(image: MetadataImage, data: bytes) -> Delta:
    """Replace the content of `image` by a snapshot. Returns the difference.

    Raises ValueError for bytes that are no snapshot; then `image` is unchanged.
    """
    fresh, delta = all_steps(restoring(image, data))
    image.become(fresh)
    return delta


def restoring(image: MetadataImage, data: bytes) -> Work[tuple[MetadataImage, Delta]]:
    """The image of a snapshot, and its difference from `image`, which is unchanged.

    In steps of some milliseconds, which any thread may make. Raises ValueError for bytes that are
    no snapshot.
    """
    text = inflate(data)
    yield
    fresh = MetadataImage()
    try:
        missing = set(_SNAPSHOT_KEYS)
        for key, values in parsed(text):
            missing.discard(key)
            _fill(fresh, key, values)
            yield
        if missing:
            raise KeyError(*sorted(missing))
        fresh.size = recount(fresh)
        fresh.groups_size = recount_groups(fresh)
        fresh.access_size = recount_access(fresh)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"metadata snapshot of another shape: {error!r}") from error
    delta = yield from difference(image, fresh)
    return fresh, delta


def _fill(image: MetadataImage, key: str, values: list[Any]) -> None:
    """Take over one part of a snapshot (`parsed`)."""
    match key, values:
        case "format", [version]:
            if version not in _SNAPSHOT_FORMATS_READ:
                raise ValueError(
                    f"metadata snapshot of unknown format {version}: written by another "
                    "version of mqd?"
                )
        case (("index" | "cluster_id" | "next_producer_id"), [value]):
            setattr(image, key, value)
        case "features", [features]:
            image.features = dict(features)
        case "brokers", [rows]:
            for node_id, host, port, rack, epoch, incarnation, *rest in rows:
                broker = BrokerImage(node_id, host, port, rack, epoch, UUID(incarnation), *rest[:4])
                for endpoints in rest[4:]:
                    stored = tuple(BrokerEndpoint(*endpoint) for endpoint in endpoints)
                    broker = replace(broker, endpoints=stored)
                image.brokers[node_id] = broker
        case "topics", [name, topic_id]:
            image.insert_topic(TopicImage(name, UUID(topic_id), []))
        case "partitions", rows:
            next(reversed(image.topics.values())).partitions.extend(
                PartitionImage(
                    leader,
                    leader_epoch,
                    partition_epoch,
                    *(tuple(nodes) for nodes in node_lists),
                )
                for leader, leader_epoch, partition_epoch, *node_lists in rows
            )
        case "configs", rows:
            for resource_type, resource_name, overrides in rows:
                image.configs[resource_type, resource_name] = dict(overrides)
        case "scram_credentials", rows:
            for user, mechanism, iterations, *secrets in rows:
                kind = ScramMechanism(mechanism)
                credential = ScramCredential(iterations, *map(bytes.fromhex, secrets))
                image.scram_credentials[user, kind] = credential
                image.scram_shapes.append(kind, credential)
        case "acls", rows:
            for acl_id, kind, name, pattern, principal, host, operation, permission in rows:
                acl = Acl(
                    ResourceType(kind),
                    name,
                    PatternType(pattern),
                    principal,
                    host,
                    Operation(operation),
                    Permission(permission),
                )
                image.insert_acl(UUID(acl_id), acl)
        case "client_quotas", rows:
            for entity, quotas in rows:
                image.client_quotas[tuple((kind, name) for kind, name in entity)] = dict(quotas)
        case "lost", rows:
            image.lost_replicas.update(
                (UUID(topic_id), partition, node_id) for topic_id, partition, node_id in rows
            )


def parsed(text: str) -> Iterator[tuple[str, list[Any]]]:
    """The object that `snapshot_text` wrote, in parts: (key, values). Raises ValueError.

    The keys of `_LISTS` come without values first, then some elements at a time. So does `topics`,
    with name and id of one topic at a time, and some rows at a time of its `partitions` behind it.
    Any other key has one value.
    """
    reader = JsonReader(text)
    more = reader.opens("{", "}")
    while more:
        key = reader.value()
        reader.expect(":")
        if key == _TOPICS:
            yield key, []
            yield from _parsed_topics(reader)
        elif key in _LISTS:
            yield key, []
            for values in elements(reader):
                yield key, values
        else:
            yield key, [reader.value()]
        more = reader.continues("}")
    reader.end()


def _parsed_topics(reader: JsonReader) -> Iterator[tuple[str, list[Any]]]:
    if not reader.opens("[", "]"):
        return
    while True:
        reader.expect("[")
        name = reader.value()
        reader.expect(",")
        topic_id = reader.value()
        reader.expect(",")
        yield _TOPICS, [name, topic_id]
        for rows in elements(reader):
            yield _PARTITIONS, rows
        reader.expect("]")
        if not reader.continues("]"):
            return
