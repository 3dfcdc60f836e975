"""The names of all options: the source's, the sink's, Spark's own, and Kafka's client properties.

A name without an effect is a risk: with `deliveryGarantee` a query would write at least once. So a
name that is close to one of ours is refused, and other unknown names are warned about. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from mqd.client.client_properties import is_security_key

from .connection import HONOURED, PREFIX
from .errors import OptionError, shortened

SIMILARITY_MIN = 0.85
"""The ratio of `difflib`: two wrong characters in 14, for example."""

SOURCE_NAMES = (
    *("assign", "subscribe", "subscribePattern"),
    *("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets"),
    *("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets"),
    *("startingOffsetsByTimestampStrategy", "asOfTimestamp", "asOfOffsets", "failOnDataLoss"),
    *("minPartitions", "maxRecordsPerPartition", "maxOffsetsPerTrigger", "minOffsetsPerTrigger"),
    *("maxTriggerDelay", "maxBytesPerTrigger", "includeHeaders", "columns", "filterPushdown"),
    *("commitOffsets", "offsetMetadata", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs"),
    *("kafkaConsumer.pollTimeoutMs", "groupIdPrefix"),
)
SINK_NAMES = (
    *("topic", "deliveryGuarantee", "exactlyOnceId", "markerTopic", "acceptMissingMarkers"),
    *("acceptChangedRows", "timestampColumn", "taskHeaders", "includeHeaders"),
)
SPARK_NAMES = frozenset({"path", "paths", "checkpointlocation", "queryname", "outputmode"})
"""Options of Spark that reach every format, by lower-case name."""

CLIENT_NAMES = HONOURED | frozenset(
    {
        # every client
        *("bootstrap.controllers", "client.dns.lookup", "client.rack", "connections.max.idle.ms"),
        *("enable.metrics.push", "metadata.max.age.ms", "metadata.recovery.strategy"),
        *("metadata.recovery.rebootstrap.trigger.ms", "metric.reporters", "metrics.num.samples"),
        *("metrics.recording.level", "metrics.sample.window.ms", "receive.buffer.bytes"),
        *("reconnect.backoff.max.ms", "reconnect.backoff.ms", "retries", "retry.backoff.max.ms"),
        *("retry.backoff.ms", "security.providers", "send.buffer.bytes", "config.providers"),
        *("socket.connection.setup.timeout.max.ms", "auto.include.jmx.reporter"),
        # consumers
        *("allow.auto.create.topics", "auto.commit.interval.ms", "auto.offset.reset"),
        *("check.crcs", "enable.auto.commit", "exclude.internal.topics", "fetch.max.wait.ms"),
        *("fetch.min.bytes", "group.instance.id", "group.protocol", "group.remote.assignor"),
        *("heartbeat.interval.ms", "interceptor.classes", "key.deserializer"),
        *("max.partition.fetch.bytes", "max.poll.interval.ms", "max.poll.records"),
        *("partition.assignment.strategy", "session.timeout.ms", "value.deserializer"),
        "share.acknowledgement.mode",
        # producers
        *("acks", "batch.size", "buffer.memory", "compression.gzip.level", "compression.lz4.level"),
        *("compression.type", "compression.zstd.level", "delivery.timeout.ms"),
        *("enable.idempotence", "key.serializer", "linger.ms", "max.request.size"),
        *("max.in.flight.requests.per.connection", "metadata.max.idle.ms", "partitioner.class"),
        *("partitioner.adaptive.partitioning.enable", "partitioner.availability.timeout.ms"),
        *("partitioner.ignore.keys", "transaction.timeout.ms", "transactional.id"),
        *("transaction.two.phase.commit.enable", "value.serializer"),
    }
)
"""Properties of Kafka's consumers, producers and admin clients, without `sasl.` and `ssl.`."""

_CANONICAL = {name.lower(): name for name in (*SOURCE_NAMES, *SINK_NAMES)}


def check_source_names(options: Iterable[str]) -> list[str]:
    """Warnings about names without an effect in the source.

    Raises OptionError for a misspelling.
    """
    return _check(options, SOURCE_NAMES, SINK_NAMES, "source", "sink")


def check_sink_names(options: Iterable[str]) -> list[str]:
    """The same for the sink."""
    return _check(options, SINK_NAMES, SOURCE_NAMES, "sink", "source")


def _check(
    options: Iterable[str], own: Iterable[str], others: Iterable[str], side: str, other_side: str
) -> list[str]:
    mine = {name.lower() for name in own}
    theirs = {name.lower() for name in others} - mine
    foreign, unknown = [], []
    for key in sorted(options, key=str.lower):
        low = key.lower()
        name = low.removeprefix(PREFIX)
        if low in mine or low in SPARK_NAMES or name in CLIENT_NAMES or is_security_key(name):
            continue
        if low.startswith(PREFIX) and name in _CANONICAL:
            raise _misspelled(key, _CANONICAL[name])
        if low in theirs:
            foreign.append(_CANONICAL[low])
        elif (close := _close_to(low, mine)) is not None:
            raise _misspelled(key, close)
        else:
            unknown.append(key)
    warnings = []
    if foreign:
        warnings.append(
            f"Options of the {other_side} have no effect on the {side}: {_quoted(foreign)}. "
            f"Set them on the {other_side}."
        )
    if unknown:
        warnings.append(
            f"Unknown options have no effect: {_quoted(unknown)}. Correct or remove them."
        )
    return warnings


def refuse_unknown_client(names: Iterable[str]) -> None:
    """Client properties for `--client`, without a prefix. Raises OptionError for other names."""
    for name in names:
        if name in CLIENT_NAMES or is_security_key(name):
            continue
        close = get_close_matches(name.lower(), CLIENT_NAMES, 1, SIMILARITY_MIN)
        hint = f" Did you mean '{close[0]}'?" if close else " Correct or remove it."
        raise OptionError(f"Option '{shortened(name)}' is not a property of Kafka's clients.{hint}")


def _close_to(low: str, own: Iterable[str]) -> str | None:
    """The name that `low` was meant to be, if it is certain enough."""
    prefixed = {PREFIX + name: PREFIX + name for name in CLIENT_NAMES}
    known: Mapping[str, str] = {
        **{name: name for name in CLIENT_NAMES},
        **prefixed,
        **{name: _CANONICAL[name] for name in own},
    }
    if low.startswith(PREFIX):
        known = {**prefixed, **{PREFIX + name: _CANONICAL[name] for name in own}}
    found = get_close_matches(low, known, 1, SIMILARITY_MIN)
    return known[found[0]] if found else None


def _misspelled(key: str, meant: str) -> OptionError:
    return OptionError(
        f"Option '{shortened(key)}' is unknown and has no effect. Did you mean '{meant}'? "
        "Correct or remove the option."
    )


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{shortened(name)}'" for name in names)
