"""Which transactional id owns a topic with `mqd.producer.access=exclusive` or `wait`.

The owner is a config of the topic that only the cluster sets. So it is replicated, and every node
knows it. A claim names the owner that it replaces. It succeeds only if that one is still the owner:
of several claims, one does. The replaced owner is then listed as not fenced yet. The new one may
produce after its coordinator has fenced all that are listed, and has settled the claim (I60).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from mqd.controller.configs import check_overrides_fit
from mqd.controller.decision_options import DecisionOptions
from mqd.controller.image import TOPIC, MetadataImage
from mqd.controller.records import SetConfigs
from mqd.controller.result import ControllerResult
from mqd.controller.size import Room
from mqd.errors import ErrorCode, MqError
from mqd.limits import COORDINATOR_KEY_BYTES_MAX
from mqd.types import PRODUCER_OWNER, PRODUCERS_FENCED


@dataclass(frozen=True, slots=True)
class ClaimTopic:
    """`transactional_id` replaces the owner `expected` ("": there is none). If both are the same,
    this settles the claim: the former owners `fenced` are fenced.
    """

    topic: str
    transactional_id: str
    expected: str
    fenced: tuple[str, ...] = ()


class Ownership(NamedTuple):
    """The transactional id that owns a topic, "" if there is none, and the former owners that are
    not fenced yet.
    """

    owner: str
    unfenced: tuple[str, ...]


def ownership(image: MetadataImage, topic: str) -> Ownership:
    """The present owner of a topic."""
    configs = image.topic_configs(topic)
    unfenced = configs.get(PRODUCERS_FENCED, "")
    return Ownership(
        configs.get(PRODUCER_OWNER, ""), tuple(unfenced.split("\n")) if unfenced else ()
    )


def decide_claim_topic(
    image: MetadataImage, op: ClaimTopic, options: DecisionOptions
) -> ControllerResult:
    """Reply: none; the image shows the owner. An outdated claim changes nothing.

    Raises UNKNOWN_TOPIC_OR_PARTITION, INVALID_REQUEST, INVALID_CONFIG, POLICY_VIOLATION.
    """
    if op.topic not in image.topics:
        raise MqError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{op.topic}' does not exist."
        )
    claimer = op.transactional_id
    if not claimer or "\n" in claimer or len(claimer.encode()) > COORDINATOR_KEY_BYTES_MAX:
        raise MqError(
            ErrorCode.INVALID_REQUEST,
            "The transactional id of an owner must have one line, and not be empty or too long.",
        )
    present = ownership(image, op.topic)
    if present.owner != op.expected:
        return ControllerResult(())
    if claimer == present.owner:
        unfenced = [one for one in present.unfenced if one not in op.fenced]
    else:
        former = (*present.unfenced, present.owner)
        unfenced = [one for one in dict.fromkeys(former) if one not in ("", claimer)]
    after = {PRODUCER_OWNER: claimer, PRODUCERS_FENCED: "\n".join(unfenced) or None}
    configs = image.topic_configs(op.topic)
    changes = tuple((name, value) for name, value in after.items() if configs.get(name) != value)
    if not changes:
        return ControllerResult(())
    check_overrides_fit({**configs, **after})
    record = SetConfigs(TOPIC, op.topic, changes)
    Room(image, options.image_bytes_max).take(record)
    return ControllerResult((record,))
