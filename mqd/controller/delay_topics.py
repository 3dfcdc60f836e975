"""Checks of the configs of delay topics and retry topics (mqd/relay/delay_topic.py), against the
other topics of the image.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mqd.back_off import parse_back_off
from mqd.controller.image import MetadataImage
from mqd.delay_names import BACKOFF_CONFIG, DEAD_LETTERS_CONFIG, TARGET_CONFIG
from mqd.errors import ErrorCode, MqError

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
    if all(
        before.get(name) == after.get(name)
        for name in (TARGET_CONFIG, DEAD_LETTERS_CONFIG, BACKOFF_CONFIG)
    ) and (
        "cleanup.policy" not in after or before.get("cleanup.policy") == after["cleanup.policy"]
    ):
        return
    _check_backoff(backoff)
    if not after.get(TARGET_CONFIG, "").strip():
        if backoff:
            raise MqError(ErrorCode.INVALID_CONFIG, f"{BACKOFF_CONFIG} needs {TARGET_CONFIG}.")
        return
    if "compact" in after.get("cleanup.policy", ""):
        raise MqError(
            ErrorCode.INVALID_CONFIG,
            f"A topic with {TARGET_CONFIG} cannot be compacted: use cleanup.policy=delete.",
        )
    for named in topics_named_in(after):
        _check_exists(image, topic, named)
        _check_leads_away(image, topic, named)


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
    """No chain of delay topics leads back to `topic`."""
    reached, seen = [named], {named}
    while reached and len(seen) < _CHAIN_MAX:
        for following in topics_named_in(image.topic_configs(reached.pop())):
            if following == topic:
                raise MqError(
                    ErrorCode.INVALID_CONFIG,
                    f"{topic!r} cannot relay records to {named!r}, which relays them back to it.",
                )
            if following not in seen:
                seen.add(following)
                reached.append(following)
