"""What is wrong with the topics to which delay topics write. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from mqctl.findings import WARNING, Finding, Observed
from mqd.client.errors import ClientError
from mqd.delay_names import DEAD_LETTERS_CONFIG, TARGET_CONFIG
from mqd.types import PRODUCER_ACCESS, SHARED


def check_delays(observed: Observed) -> Iterable[Finding]:
    """A relay waits until it can write to its target and to its dead-letter topic."""
    if isinstance(observed.partitions, ClientError):
        return
    topics = {place.topic for place in observed.partitions}
    for topic, configs in sorted(observed.topic_configs.items()):
        if not configs.get(TARGET_CONFIG):
            continue
        for name in (TARGET_CONFIG, DEAD_LETTERS_CONFIG):
            target = configs.get(name, "")
            if not target:
                continue
            access = observed.topic_configs.get(target, {}).get(PRODUCER_ACCESS, SHARED)
            if target not in topics:
                problem, remedy = "does not exist", f"`mqctl topic create {target}`"
            elif access != SHARED:
                problem = f"has {PRODUCER_ACCESS}={access}"
                remedy = f"`mqctl topic config set {target} {PRODUCER_ACCESS}={SHARED}`"
            else:
                continue
            yield Finding(
                "delay",
                WARNING,
                f"records of {topic} cannot leave: {target!r}, its {name}, {problem}",
                f"{remedy}; or `mqctl topic config set {topic} {name}=TOPIC`",
            )
