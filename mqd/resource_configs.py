"""The configs of topics and consumer groups: their effective values, and checks of values that
clients send.

A key that a topic or a group does not set has the value of its synonyms on the node, or a default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from mqd.back_off import parse_back_off
from mqd.config import NodeConfig
from mqd.config_sources import Source
from mqd.delay_names import DEAD_LETTERS_CONFIG, TARGET_CONFIG
from mqd.errors import ErrorCode, MqError
from mqd.option_table import GROUP_OPTIONS, NODE_OPTIONS, TOPIC_OPTIONS
from mqd.options import Option, Status, Value, nearest
from mqd.topic_names import topic_name_problem
from mqd.types import IN_MEMORY, PRODUCER_LEASE, PRODUCER_OWNER, PRODUCERS_FENCED, STORAGE


def topic_options(config: NodeConfig, overrides: Mapping[str, str]) -> dict[str, Value]:
    """Every topic key with its effective value: the topic's, else that of the node's synonym, else
    the default.

    `overrides`: the topic's configs as text, which were validated when they were set.
    """
    return {name: resolve_topic_option(name, config, overrides)[0].value for name in TOPIC_OPTIONS}


class Candidate(NamedTuple):
    """A value for a key of a topic or group, with its source and the key's name there."""

    name: str
    value: Value
    source: Source


def resolve_topic_option(
    name: str, config: NodeConfig, overrides: Mapping[str, str]
) -> list[Candidate]:
    """All values for a topic key, the effective one first (the synonyms of DescribeConfigs)."""
    return _candidates(TOPIC_OPTIONS[name], config, overrides, Source.TOPIC)


def resolve_group_option(
    name: str, config: NodeConfig, overrides: Mapping[str, str]
) -> list[Candidate]:
    """The same for a key of consumer groups (KIP-848). `group_option` also applies the bounds of
    the node.
    """
    return _candidates(GROUP_OPTIONS[name], config, overrides, Source.GROUP)


def _candidates(
    option: Option, config: NodeConfig, overrides: Mapping[str, str], own: Source
) -> list[Candidate]:
    name = option.name
    found: list[Candidate] = []
    if name in overrides:
        found.append(Candidate(name, option.parse(overrides[name]), own))
    for synonym, factor in option.synonyms:
        value = _scaled(config[synonym], factor)
        if value is not None and config.source(synonym) is not Source.DEFAULT:
            found.append(Candidate(synonym, value, config.source(synonym)))
    for synonym, factor in option.synonyms:
        value = _scaled(NODE_OPTIONS[synonym].default, factor)
        if value is not None:
            found.append(Candidate(synonym, value, Source.DEFAULT))
            return found
    return [*found, Candidate(name, option.default, Source.DEFAULT)]


def validate_topic_config(name: str, value: str | None) -> Value:
    """The typed value of a topic config that a client has sent. Raises MqError INVALID_CONFIG."""
    option = TOPIC_OPTIONS.get(name)
    if option is None:
        raise MqError(
            ErrorCode.INVALID_CONFIG,
            f"Unknown topic config name: {name}; {_topic_key_remedy(name)}",
        )
    if value is None:
        raise MqError(
            ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {name}"
        )
    try:
        parsed = option.parse(value)
    except ValueError as error:
        raise MqError(ErrorCode.INVALID_CONFIG, option.problem(error)) from None
    if option.status is Status.REFUSED and parsed != option.default:
        raise MqError(ErrorCode.INVALID_CONFIG, f"'{name}' is not supported: {option.note}")
    if name == DEAD_LETTERS_CONFIG:
        _check_dead_letter_topic(name, str(parsed))
    return parsed


def validate_topic_configs(overrides: Mapping[str, str | None]) -> dict[str, Value]:
    """The typed values of a topic's configs, checked together. Raises MqError INVALID_CONFIG."""
    values = {name: validate_topic_config(name, value) for name, value in overrides.items()}
    lag_min = values.get("min.compaction.lag.ms", TOPIC_OPTIONS["min.compaction.lag.ms"].default)
    lag_max = values.get("max.compaction.lag.ms", TOPIC_OPTIONS["max.compaction.lag.ms"].default)
    assert isinstance(lag_min, int)
    assert isinstance(lag_max, int)
    if lag_min > lag_max:
        raise MqError(
            ErrorCode.INVALID_CONFIG,
            f"min.compaction.lag.ms ({lag_min}) must be less than or equal to "
            f"max.compaction.lag.ms ({lag_max})",
        )
    if values.get(STORAGE) == IN_MEMORY:
        _check_in_memory(values)
    return values


def _check_in_memory(values: Mapping[str, Value]) -> None:
    """Refuse configs that a topic in memory cannot fulfil."""
    if "compact" in (values.get("cleanup.policy") or ()):  # type: ignore[operator]
        raise MqError(
            ErrorCode.INVALID_CONFIG,
            "A topic with mqd.storage=memory cannot be compacted: its oldest records leave when it "
            "is full. Set cleanup.policy=delete",
        )
    if values.get(TARGET_CONFIG):
        raise MqError(
            ErrorCode.INVALID_CONFIG,
            "A delay topic cannot have mqd.storage=memory: it must not lose pending records",
        )
    if values.get("flush.before.ack"):
        raise MqError(
            ErrorCode.INVALID_CONFIG,
            "A topic with mqd.storage=memory cannot have flush.before.ack=true: nothing of it is "
            "on a disk",
        )


FIXED_CONFIGS = frozenset({STORAGE, PRODUCER_OWNER, PRODUCERS_FENCED})
"""Topic configs that a client cannot change. A request that replaces all configs keeps them."""


def check_fixed_configs(
    before: Mapping[str, str], after: Mapping[str, str], *, is_new: bool = False
) -> None:
    """Refuse the change of a config that only the cluster sets, or only a new topic. Raises MqError
    INVALID_CONFIG.
    """
    for name in (PRODUCER_OWNER, PRODUCERS_FENCED):
        if before.get(name) != after.get(name):
            raise MqError(
                ErrorCode.INVALID_CONFIG,
                f"{name} is set by the cluster: a producer gets the topic after its owner was idle "
                f"for {PRODUCER_LEASE}",
            )
    if is_new:
        return
    option = TOPIC_OPTIONS[STORAGE]
    old, new = (
        option.parse(configs[STORAGE]) if STORAGE in configs else option.default
        for configs in (before, after)
    )
    if old != new:
        raise MqError(
            ErrorCode.INVALID_CONFIG,
            f"{STORAGE} is {old} and cannot be changed: create another topic with {STORAGE}={new}",
        )


def without_effect(options: Mapping[str, Option], overrides: Mapping[str, str]) -> str | None:
    """A message that names the keys without effect whose value is not the default, and values that
    act as a smaller one; None if there are none. `overrides` must be valid.
    """
    losses: dict[Status, list[str]] = {Status.IGNORED: [], Status.IMPLEMENTED: []}
    for name, text in sorted(overrides.items()):
        option = options[name]
        if option.status is not Status.IGNORED and option.effective_maximum is None:
            continue  # also keys of client metrics, whose lists may name an element twice
        loss = option.loss(option.parse(text))
        if loss is not None:
            losses[option.status].append(f"{name} ({loss})")
    ignored, limited = losses[Status.IGNORED], losses[Status.IMPLEMENTED]
    sentences = [f"Accepted without effect: {', '.join(ignored)}."] if ignored else []
    if limited:
        sentences.append(f"Accepted with less effect: {', '.join(limited)}.")
    return " ".join(sentences) or None


class _NodeKeys(NamedTuple):
    """The node keys for a group key: its default, and its bounds."""

    default: str
    least: str
    most: str


_NODE_KEYS = {
    "consumer.assignment.interval.ms": _NodeKeys(
        "group.consumer.assignment.interval.ms",
        "group.consumer.min.assignment.interval.ms",
        "group.consumer.max.assignment.interval.ms",
    ),
    "consumer.heartbeat.interval.ms": _NodeKeys(
        "group.consumer.heartbeat.interval.ms",
        "group.consumer.min.heartbeat.interval.ms",
        "group.consumer.max.heartbeat.interval.ms",
    ),
    "consumer.session.timeout.ms": _NodeKeys(
        "group.consumer.session.timeout.ms",
        "group.consumer.min.session.timeout.ms",
        "group.consumer.max.session.timeout.ms",
    ),
    "share.assignment.interval.ms": _NodeKeys(
        "group.share.assignment.interval.ms",
        "group.share.min.assignment.interval.ms",
        "group.share.max.assignment.interval.ms",
    ),
    "share.delivery.count.limit": _NodeKeys(
        "group.share.delivery.count.limit",
        "group.share.min.delivery.count.limit",
        "group.share.max.delivery.count.limit",
    ),
    "share.heartbeat.interval.ms": _NodeKeys(
        "group.share.heartbeat.interval.ms",
        "group.share.min.heartbeat.interval.ms",
        "group.share.max.heartbeat.interval.ms",
    ),
    "share.partition.max.record.locks": _NodeKeys(
        "group.share.partition.max.record.locks",
        "group.share.min.partition.max.record.locks",
        "group.share.max.partition.max.record.locks",
    ),
    "share.record.lock.duration.ms": _NodeKeys(
        "group.share.record.lock.duration.ms",
        "group.share.min.record.lock.duration.ms",
        "group.share.max.record.lock.duration.ms",
    ),
    "share.session.timeout.ms": _NodeKeys(
        "group.share.session.timeout.ms",
        "group.share.min.session.timeout.ms",
        "group.share.max.session.timeout.ms",
    ),
}
"""Group keys whose default and bounds are options of nodes."""


def validate_group_configs(overrides: Mapping[str, str], config: NodeConfig) -> None:
    """Check the configs of a group: each alone, within the node's bounds, and together. Raises
    MqError INVALID_CONFIG.
    """
    values = {name: config.integer(keys.default) for name, keys in _NODE_KEYS.items()}
    for name, text in overrides.items():
        if name not in GROUP_OPTIONS:
            remedy = f"choose from {', '.join(map(repr, GROUP_OPTIONS))}"
            raise MqError(ErrorCode.INVALID_CONFIG, f"Unknown group config name: {name}; {remedy}")
        try:
            value = GROUP_OPTIONS[name].parse(text)
        except ValueError as error:
            raise MqError(ErrorCode.INVALID_CONFIG, GROUP_OPTIONS[name].problem(error)) from None
        keys = _NODE_KEYS.get(name)
        if keys is None:
            if name == AUTO_OFFSET_RESET:
                parse_offset_reset(str(value))
            elif name == RETRY_BACK_OFF:
                _check_back_off(str(value))
            elif name == GROUP_DEAD_LETTERS:
                _check_dead_letter_topic(name, str(value))
            continue
        assert isinstance(value, int), name
        least, most = config.integer(keys.least), config.integer(keys.most)
        if value < least:
            raise MqError(
                ErrorCode.INVALID_CONFIG,
                f"{name} must be greater than or equal to {keys.least}; use at least {least}, or "
                "lower that key of the brokers",
            )
        if value > most:
            raise MqError(
                ErrorCode.INVALID_CONFIG,
                f"{name} must be less than or equal to {keys.most}; use at most {most}, or raise "
                "that key of the brokers",
            )
        values[name] = value
    for kind in ("consumer", "share"):
        if values[f"{kind}.session.timeout.ms"] <= values[f"{kind}.heartbeat.interval.ms"]:
            raise MqError(
                ErrorCode.INVALID_CONFIG,
                f"{kind}.session.timeout.ms must be greater than {kind}.heartbeat.interval.ms",
            )


AUTO_OFFSET_RESET = "share.auto.offset.reset"
RETRY_BACK_OFF = "mqd.share.retry.backoff"
GROUP_DEAD_LETTERS = "errors.deadletterqueue.topic.name"
_DURATION = re.compile(
    r"by_duration:P(?=.)(?:([0-9]{1,19})D)?"
    r"(?:T(?=.)(?:([0-9]{1,19})H)?(?:([0-9]{1,19})M)?(?:([0-9]{1,19}(?:\.[0-9]{1,9})?)S)?)?",
    re.IGNORECASE,
)
EARLIEST, LATEST = -2, -1
"""Values of `parse_offset_reset`, the timestamps of ListOffsets."""


def _check_back_off(text: str) -> None:
    try:
        parse_back_off(text)
    except ValueError as error:
        raise MqError(
            ErrorCode.INVALID_CONFIG,
            f"Invalid value {text} for configuration {RETRY_BACK_OFF}: {error}; use a list such as "
            "1s,10s,1m",
        ) from None


def _check_dead_letter_topic(key: str, topic: str) -> None:
    """Raises MqError INVALID_CONFIG. Nodes write to this topic whatever the ACLs are, so internal
    topics are refused, as in KIP-1191."""
    problem = topic_name_problem(topic) if topic else None
    if topic.startswith("__"):
        problem = "it begins with __"
    if problem is not None:
        raise MqError(
            ErrorCode.INVALID_CONFIG,
            f"Invalid value {topic} for configuration {key}: {problem}; use the name of a topic "
            "that is not internal",
        )


def parse_offset_reset(text: str) -> int:
    """EARLIEST, LATEST, or a duration in milliseconds (KIP-1106). Raises MqError INVALID_CONFIG."""
    if text in ("earliest", "latest"):
        return EARLIEST if text == "earliest" else LATEST
    found = _DURATION.fullmatch(text)
    if found is None:
        raise MqError(
            ErrorCode.INVALID_CONFIG,
            f"Invalid value {text} for configuration {AUTO_OFFSET_RESET}: choose earliest, latest, "
            "or by_duration: and an ISO 8601 duration, such as by_duration:PT1H",
        )
    days, hours, minutes, seconds = (float(each or 0) for each in found.groups())
    milliseconds = int(1000 * (((days * 24 + hours) * 60 + minutes) * 60 + seconds))
    if milliseconds >= 2**63:
        raise MqError(
            ErrorCode.INVALID_CONFIG,
            f"Invalid value {text} for configuration {AUTO_OFFSET_RESET}: the duration has more "
            "than 2^63 milliseconds",
        )
    return milliseconds


def group_option(name: str, config: NodeConfig, overrides: Mapping[str, str]) -> Value:
    """The effective value: the group's, limited to the node's present bounds; else the node's."""
    keys = _NODE_KEYS.get(name)
    if keys is None:
        option = GROUP_OPTIONS[name]
        return option.parse(overrides[name]) if name in overrides else option.default
    if name not in overrides:
        return config.integer(keys.default)
    value = GROUP_OPTIONS[name].parse(overrides[name])
    assert isinstance(value, int), name
    return max(config.integer(keys.least), min(config.integer(keys.most), value))


def _topic_key_remedy(name: str) -> str:
    """What to do about a key that is not a topic key."""
    if name in NODE_OPTIONS:
        of_node = {
            synonym: option.name
            for option in TOPIC_OPTIONS.values()
            for synonym, _ in option.synonyms
        }
        if name in of_node:
            return f"it is a broker key, and the topic key is '{of_node[name]}'"
        return "it is a broker key"
    close = nearest(name, TOPIC_OPTIONS)
    return f"did you mean '{close}'?" if close else "list all keys with `mqd config list`"


def _scaled(value: Value, factor: int) -> Value:
    """A value in the unit of its topic key, such as hours in milliseconds. -1 for a negative
    value, which means no limit.
    """
    if factor == 1 or value is None:
        return value
    assert isinstance(value, int), value
    return -1 if value < 0 else value * factor
