"""Checks of the configs of delay topics and retry topics (mqd/relay/delay_topic.py), against the
other topics of the image.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mqd.back_off import parse_back_off
from mqd.controller.image import GROUP, TOPIC, MetadataImage
from mqd.delay_names import BACKOFF_CONFIG, DEAD_LETTERS_CONFIG, REPLACE_CONFIG, TARGET_CONFIG
from mqd.errors import ErrorCode, MqError
from mqd.resource_configs import GROUP_DEAD_LETTERS
from mqd.types import PRODUCER_ACCESS, SHARED

_CHAIN_MAX: Final = 100


def topics_named_in(configs: Mapping[str, str | None]) -> tuple[str, ...]:
    """The topics to which these configs make the cluster write."""
    names = (configs.get(TARGET_CONFIG), configs.get(DEAD_LETTERS_CONFIG))
    return tuple(name.strip() for name in names if name and name.strip())


def check_delay_configs(
    image: MetadataImage, topic: str, present: Mapping[str, str] | None, after: Mapping[str, str]
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
        _check_nothing_relays_to(image, topic)
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
    check_dead_letter_access(image, dead_letters)
    if not after.get(TARGET_CONFIG, "").strip():
        if backoff:
            raise MqError(ErrorCode.INVALID_CONFIG, f"{BACKOFF_CONFIG} needs {TARGET_CONFIG}.")
        replace = after.get(REPLACE_CONFIG, "").strip().lower()
        if replace == "true" and after[REPLACE_CONFIG] != before.get(REPLACE_CONFIG):
            raise MqError(ErrorCode.INVALID_CONFIG, f"{REPLACE_CONFIG} needs {TARGET_CONFIG}.")
        if dead_letters:
            _check_leads_away(image, topic, dead_letters)
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
        _check_exists(image, topic, named)
        _check_shared(image, named)
        _check_leads_away(image, topic, named)


def check_dead_letter_access(image: MetadataImage, topic: str) -> None:
    """Raise INVALID_CONFIG for a topic that cannot take dead letters. It need not exist yet."""
    if topic:
        _check_shared(image, topic)


def _check_shared(image: MetadataImage, named: str) -> None:
    access = image.producer_access(named)
    if access != SHARED:
        raise MqError(
            ErrorCode.INVALID_CONFIG,
            f"Nodes cannot relay records or dead letters to {named!r}, which takes records of one "
            f"producer only ({PRODUCER_ACCESS}={access}); name another topic",
        )


def _check_nothing_relays_to(image: MetadataImage, topic: str) -> None:
    """Before a topic has a single producer."""
    for (kind, name), configs in image.configs.items():
        if kind == TOPIC and topic in topics_named_in(configs):
            what = f"{name!r} relays records to it"
        elif kind == GROUP and configs.get(GROUP_DEAD_LETTERS) == topic:
            what = f"it takes the dead letters of group {name!r}"
        else:
            continue
        raise MqError(
            ErrorCode.INVALID_CONFIG,
            f"The topic {topic!r} cannot have a single producer ({PRODUCER_ACCESS}), because "
            f"{what}; change that config first",
        )


def _check_backoff(text: str) -> None:
    try:
        parse_back_off(text)
    except ValueError as error:
        raise MqError(
            ErrorCode.INVALID_CONFIG,
            f"Invalid value {text} for configuration {BACKOFF_CONFIG}: {error}",
        ) from None


def _check_exists(image: MetadataImage, topic: str, named: str) -> None:
    found = image.topics.get(named)
    if named == topic or (found is not None and found.internal):
        raise MqError(
            ErrorCode.INVALID_CONFIG, f"{topic!r} cannot relay records to {named!r}: name another."
        )
    if found is None:
        raise MqError(
            ErrorCode.INVALID_CONFIG,
            f"The topic {named!r}, to which {topic!r} would relay records, does not exist. Create "
            "it first.",
        )


def _check_leads_away(image: MetadataImage, topic: str, named: str) -> None:
    """No chain of targets and dead-letter topics leads back to `topic`."""
    reached, seen = [named], {named}
    while reached:
        for following in topics_named_in(image.topic_configs(reached.pop())):
            if following == topic:
                raise MqError(
                    ErrorCode.INVALID_CONFIG,
                    f"{topic!r} cannot relay records to {named!r}, which relays them back to it.",
                )
            if following not in seen:
                seen.add(following)
                reached.append(following)
        if len(seen) > _CHAIN_MAX:
            raise MqError(
                ErrorCode.INVALID_CONFIG,
                f"{topic!r} cannot relay records to {named!r}, which relays them on through more "
                f"than {_CHAIN_MAX} topics; use fewer",
            )
