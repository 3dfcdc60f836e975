"""What is wrong with disks and with the bounds of brokers. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from mqctl.findings import (
    BAD,
    DENIED,
    DENIED_REMEDY,
    NOTE,
    OK,
    WARNING,
    Finding,
    Observed,
    is_denied,
    named_ids,
    reason_of,
    remedy_of,
)
from mqctl.quantities import format_bytes
from mqd.client.descriptions import (
    BoundUsage,
)
from mqd.client.errors import ClientError
from mqd.types import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from mqd.usage import THRESHOLDS

DISK_LOW, DISK_FULL = 0.15, 0.05
"""Free shares of a disk: below the first a warning, below the second bad."""

METADATA = "metadata"
_LEVELS = NOTE, WARNING, BAD
"""The level of a finding, by the number of the highest threshold that usage has passed."""
_BOUNDS = {
    "": (
        "metadata.image.max.bytes",
        "new topics, partitions and config overrides are rejected",
        "delete unused topics or config overrides",
    ),
    GROUPS_TOPIC: (
        "group.coordinator.memory.bytes",
        "new groups, members and offsets are rejected",
        "delete unused groups: `mqctl group list`, `mqctl group delete`",
    ),
    TRANSACTIONS_TOPIC: (
        "transaction.coordinator.memory.bytes",
        "new transactional ids are rejected",
        "shorten transactional.id.expiration.ms, or use fewer ids: `mqctl txn list`",
    ),
}
"""By the topic of a coordinator ("": the metadata): the option that sets the bound, the consequence
of reaching it, and the remedy.
"""


def check_disks(observed: Observed) -> Iterable[Finding]:
    worst = OK
    free: list[float] = []
    denied = [
        broker_id
        for broker_id, directories in observed.disks.items()
        if isinstance(directories, ClientError) and is_denied(directories)
    ]
    if denied:
        worst = WARNING
        yield Finding(
            "disks",
            WARNING,
            f"cannot describe the log directories of {named_ids('broker', denied)}: {DENIED}",
            DENIED_REMEDY,
        )
    for broker_id, directories in sorted(observed.disks.items()):
        if broker_id in denied:
            continue
        if isinstance(directories, ClientError):
            worst = WARNING
            yield Finding(
                "disks",
                WARNING,
                f"cannot describe the log directories of broker {broker_id}: {directories.message}",
                directories.remedy,
            )
            continue
        for each in directories:
            if each.error is not None:
                worst = BAD
                yield Finding(
                    "disks",
                    BAD,
                    f"log directory {each.path} of broker {broker_id} is offline: "
                    f"{each.error.message}",
                    "replace the disk, then restart the broker; it copies the missing replicas "
                    "from the others",
                )
            elif each.total_bytes > 0 and each.usable_bytes >= 0:
                share = each.usable_bytes / each.total_bytes
                free.append(share)
                if share < DISK_LOW:
                    worst = BAD
                    yield Finding(
                        "disks",
                        BAD if share < DISK_FULL else WARNING,
                        f"log directory {each.path} of broker {broker_id} has "
                        f"{format_bytes(each.usable_bytes)} free, {share:.0%}",
                        "delete topics or shorten their retention, move partitions away, or "
                        "enlarge the disk",
                    )
    if worst is OK and free:
        yield Finding("disks", OK, f"at least {min(free):.0%} free on each")


def check_bounds(observed: Observed) -> Iterable[Finding]:
    """The highest usage of each bound. All brokers have the same metadata; of each coordinator, a
    broker reports its fullest shard.
    """
    fullest: dict[str, tuple[BoundUsage, int]] = {}
    all_known = True
    for broker_id, found in sorted(observed.usage.items()):
        if isinstance(found, ClientError):
            all_known = False
            yield Finding(
                "bounds",
                NOTE,
                f"broker {broker_id} does not report its memory bounds: {reason_of(found)}",
                remedy_of(found),
            )
            continue
        for each in found:
            if each.bound not in fullest or each.share > fullest[each.bound][0].share:
                fullest[each.bound] = each, broker_id
    tight = [name for name, (each, _) in sorted(fullest.items()) if each.share >= THRESHOLDS[0]]
    for name in tight:
        each, broker_id = fullest[name]
        option, consequence, remedy = _BOUNDS.get(name.rpartition("-")[0], _BOUNDS[""])
        where = "" if name == METADATA else f" on broker {broker_id}"
        yield Finding(
            "bounds",
            _LEVELS[sum(each.share >= threshold for threshold in THRESHOLDS) - 1],
            f"{name}{where} uses {format_bytes(each.used_bytes)}, {each.share:.0%} of its bound; "
            f"at 100% {consequence}",
            f"{remedy}; or raise {option} on every broker",
        )
    if all_known and fullest and not tight:
        most = max(each.share for each, _ in fullest.values())
        yield Finding(
            "bounds", OK, f"metadata and coordinators use at most {most:.0%} of their bounds"
        )
