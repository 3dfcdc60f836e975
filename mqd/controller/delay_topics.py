"""Checks of the configs of delay topics and retry topics (mqd/relay/delay_topic.py), against the
other topics: those of the image, and those that the same request created or altered before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mqd.back_off import parse_back_off
from mqd.controller.image import TOPIC, MetadataImage
from mqd.controller.records import CreateTopic, SetConfigs
from mqd.delay_names import BACKOFF_CONFIG, DEAD_LETTERS_CONFIG, REPLACE_CONFIG, TARGET_CONFIG
from mqd.errors import ErrorCode, MqError
from mqd.resource_configs import GROUP_DEAD_LETTERS
from mqd.types import INTERNAL_TOPICS, PRODUCER_ACCESS, SHARED

_CHAIN_MAX: Final = 100
_NAMING: Final = (TARGET_CONFIG, DEAD_LETTERS_CONFIG, GROUP_DEAD_LETTERS)
"""The configs of topics and groups that name a topic."""
_Resource = tuple[str, str]
"""Type and name: a key of `MetadataImage.configs`."""


def topics_named_in(configs: Mapping[str, str | None]) -> tuple[str, ...]:
    """The topics to which these configs of a topic or a group make the cluster write."""
    names = (configs.get(key) for key in _NAMING)
    return tuple(name.strip() for name in names if name and name.strip())


class Relays:
    """Which topics the cluster writes to, and for whom, after the records of one decision so far.

    A decision takes each record that it accepts, so the rest of its request is checked against it.
    """

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._created: set[str] = set()
        self._changed: dict[_Resource, dict[str, str]] = {}
        self._graph: _Graph | None = None
        """Built when it is needed: few requests need it."""

    def take(self, record: CreateTopic | SetConfigs) -> None:
        """Apply an accepted record."""
        if isinstance(record, CreateTopic):
            resource = (TOPIC, record.name)
            self._created.add(record.name)
            after = dict(record.configs)
        else:
            resource = (record.resource_type, record.resource_name)
            changed = {**self._image.configs.get(resource, {}), **dict(record.changes)}
            after = {name: value for name, value in changed.items() if value is not None}
        self._changed[resource] = after
        if self._graph is not None:
            self._graph.put(resource, topics_named_in(after))

    def exists(self, topic: str) -> bool:
        return topic in self._created or topic in self._image.topics

    def producer_access(self, topic: str) -> str:
        changed = self._changed.get((TOPIC, topic))
        if changed is None:
            return self._image.producer_access(topic)
        return changed.get(PRODUCER_ACCESS, SHARED).strip()

    @property
    def graph(self) -> _Graph:
        if self._graph is None:
            self._graph = _Graph()
            naming = frozenset(_NAMING)
            for resource, configs in self._image.configs.items():
                if not naming.isdisjoint(configs):
                    self._graph.put(resource, topics_named_in(configs))
            for resource, configs in self._changed.items():
                self._graph.put(resource, topics_named_in(configs))
        return self._graph


class _Graph:
    """Topics and groups, and the topics that their configs name."""

    def __init__(self) -> None:
        self._named: dict[_Resource, tuple[str, ...]] = {}
        self._sources: dict[str, set[_Resource]] = {}
        """The inverse of `_named`."""
        self._reached: dict[str, frozenset[str]] = {}
        """Results of `reached`."""
        self._walked: set[str] = set()
        """The union of `_reached`."""

    def put(self, resource: _Resource, named: tuple[str, ...]) -> None:
        """Replace the topics that a resource names."""
        before = self._named.get(resource, ())
        if named == before:
            return
        self._named[resource] = named
        for topic in before:
            self._sources[topic].discard(resource)
        for topic in named:
            self._sources.setdefault(topic, set()).add(resource)
        if resource[1] in self._walked:
            self._reached.clear()
            self._walked.clear()

    def source_of(self, topic: str) -> _Resource | None:
        """A resource whose records or dead letters the cluster writes to the topic."""
        return min(self._sources.get(topic, ()), default=None)

    def reached(self, topic: str) -> frozenset[str]:
        """The topic, and all to which its records and dead letters may be relayed. Incomplete if
        they are more than `_CHAIN_MAX`.
        """
        if topic not in self._reached:
            found, left = {topic}, [topic]
            while left and len(found) <= _CHAIN_MAX:
                for following in self._named.get((TOPIC, left.pop()), ()):
                    if following not in found:
                        found.add(following)
                        left.append(following)
            self._reached[topic] = frozenset(found)
            self._walked |= found
        return self._reached[topic]


def check_delay_configs(
    relays: Relays, topic: str, present: Mapping[str, str] | None, after: Mapping[str, str]
) -> None:
    """Raise INVALID_CONFIG for configs that lead nowhere, or back. `present`: the configs before;
    None for a new topic."""
    backoff = after.get(BACKOFF_CONFIG, "")
    if present is not None and present.get(BACKOFF_CONFIG, "") != backoff:
        raise MqError(
            ErrorCode.INVALID_CONFIG,
            f"{BACKOFF_CONFIG} of a topic cannot change, because it decides when records that are "
            "there already are due. Create another retry topic.",
        )
    before = present or {}
    access = after.get(PRODUCER_ACCESS, SHARED).strip()
    if access != SHARED and before.get(PRODUCER_ACCESS, SHARED).strip() == SHARED:
        _check_nothing_relays_to(relays, topic)
    if all(
        before.get(name) == after.get(name)
        for name in (TARGET_CONFIG, DEAD_LETTERS_CONFIG, BACKOFF_CONFIG, REPLACE_CONFIG)
    ) and (
        "cleanup.policy" not in after or before.get("cleanup.policy") == after["cleanup.policy"]
    ):
        return
    _check_backoff(backoff)
    dead_letters = after.get(DEAD_LETTERS_CONFIG, "").strip()
    if dead_letters == topic:
        raise MqError(
            ErrorCode.INVALID_CONFIG,
            f"{topic!r} cannot take its own dead letters; name another topic in "
            f"{DEAD_LETTERS_CONFIG}",
        )
    check_dead_letter_access(relays, dead_letters)
    if not after.get(TARGET_CONFIG, "").strip():
        if backoff:
            raise MqError(ErrorCode.INVALID_CONFIG, f"{BACKOFF_CONFIG} needs {TARGET_CONFIG}.")
        replace = after.get(REPLACE_CONFIG, "").strip().lower()
        if replace == "true" and after[REPLACE_CONFIG] != before.get(REPLACE_CONFIG):
            raise MqError(ErrorCode.INVALID_CONFIG, f"{REPLACE_CONFIG} needs {TARGET_CONFIG}.")
        if dead_letters:
            _check_leads_away(relays, topic, dead_letters)
        return
    if "compact" in after.get("cleanup.policy", ""):
        raise MqError(
            ErrorCode.INVALID_CONFIG,
            f"A topic with {TARGET_CONFIG} cannot be compacted: use cleanup.policy=delete.",
        )
    named_topics = topics_named_in(after)
    if len(set(named_topics)) < len(named_topics):
        raise MqError(
            ErrorCode.INVALID_CONFIG,
            f"{DEAD_LETTERS_CONFIG} and {TARGET_CONFIG} of {topic!r} are the same topic: its "
            "consumers would get the dead letters again. Name another topic.",
        )
    for named in named_topics:
        _check_exists(relays, topic, named)
        _check_shared(relays, named)
        _check_leads_away(relays, topic, named)


def check_dead_letter_access(relays: Relays, topic: str) -> None:
    """Raise INVALID_CONFIG for a topic that cannot take dead letters. It need not exist yet."""
    if topic:
        _check_shared(relays, topic)


def _check_shared(relays: Relays, named: str) -> None:
    access = relays.producer_access(named)
    if access != SHARED:
        raise MqError(
            ErrorCode.INVALID_CONFIG,
            f"Nodes cannot relay records or dead letters to {named!r}, which takes records of one "
            f"producer only ({PRODUCER_ACCESS}={access}); name another topic",
        )


def _check_nothing_relays_to(relays: Relays, topic: str) -> None:
    """Before a topic has a single producer."""
    source = relays.graph.source_of(topic)
    if source is None:
        return
    kind, name = source
    what = (
        f"{name!r} relays records to it"
        if kind == TOPIC
        else f"it takes the dead letters of group {name!r}"
    )
    raise MqError(
        ErrorCode.INVALID_CONFIG,
        f"The topic {topic!r} cannot have a single producer ({PRODUCER_ACCESS}), because {what}; "
        "change that config first",
    )


def _check_backoff(text: str) -> None:
    try:
        parse_back_off(text)
    except ValueError as error:
        raise MqError(
            ErrorCode.INVALID_CONFIG,
            f"Invalid value {text} for configuration {BACKOFF_CONFIG}: {error}",
        ) from None


def _check_exists(relays: Relays, topic: str, named: str) -> None:
    if named == topic or named in INTERNAL_TOPICS:
        raise MqError(
            ErrorCode.INVALID_CONFIG, f"{topic!r} cannot relay records to {named!r}: name another."
        )
    if not relays.exists(named):
        raise MqError(
            ErrorCode.INVALID_CONFIG,
            f"The topic {named!r}, to which {topic!r} would relay records, does not exist. Create "
            "it first.",
        )


def _check_leads_away(relays: Relays, topic: str, named: str) -> None:
    """No chain of targets and dead-letter topics leads back to `topic`."""
    reached = relays.graph.reached(named)
    if len(reached) > _CHAIN_MAX:
        raise MqError(
            ErrorCode.INVALID_CONFIG,
            f"{topic!r} cannot relay records to {named!r}, which relays them on through more "
            f"than {_CHAIN_MAX} topics; use fewer",
        )
    if topic in reached:
        raise MqError(
            ErrorCode.INVALID_CONFIG,
            f"{topic!r} cannot relay records to {named!r}, which relays them back to it.",
        )
