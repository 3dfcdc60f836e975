"""What is wrong with the topics to which the dead letters of share groups go. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from mqctl.findings import NOTE, WARNING, Finding, Observed
from mqd.client.errors import ClientError
from mqd.delay_names import DEAD_LETTERS_CONFIG, TARGET_CONFIG
from mqd.resource_configs import GROUP_DEAD_LETTERS


def check_dead_letters(observed: Observed) -> Iterable[Finding]:
    """Brokers create a missing topic with the first letter, also if its name is mistyped. If they
    create no topics, records that are given up wait."""
    if isinstance(observed.partitions, ClientError):
        return
    topics = {place.topic for place in observed.partitions}
    named = [
        (
            f"topic {topic}",
            DEAD_LETTERS_CONFIG,
            configs.get(DEAD_LETTERS_CONFIG, ""),
            f"mqctl topic config set {topic}",
        )
        for topic, configs in sorted(observed.topic_configs.items())
        if not configs.get(TARGET_CONFIG)  # check_delays
    ]
    named += [
        (f"group {group}", GROUP_DEAD_LETTERS, target, f"mqctl group config set {group}")
        for group, target in sorted(observed.group_dead_letters.items())
    ]
    for owner, config, target, command in named:
        if not target or target in topics:
            continue
        missing = f"{target!r}, {config} of {owner}, does not exist"
        remedy = f"`mqctl topic create {target}`; or `{command} {config}=TOPIC`"
        if observed.creates_topics:
            yield Finding(
                "dead letters",
                NOTE,
                f"{missing}; it is created with the first dead letter",
                f"check the name; {remedy}",
            )
        else:
            yield Finding(
                "dead letters",
                WARNING,
                f"{missing}: records that share groups give up wait for their dead letters",
                remedy,
            )
