"""Delete topics, by name or by id."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from mqd.controller.decision_options import DecisionOptions
from mqd.controller.image import MetadataImage, TopicImage
from mqd.controller.records import DeleteTopic, MetadataRecord
from mqd.controller.request_limits import check_topic_count
from mqd.controller.result import ControllerResult
from mqd.errors import ErrorCode, MqError
from mqd.limits import DELETED_TOPICS_MAX
from mqd.types import ZERO_UUID


class TopicName(NamedTuple):
    """One topic of a DeleteTopics request: by name, or (version 6) by id."""

    name: str | None
    topic_id: UUID = ZERO_UUID


@dataclass(frozen=True, slots=True)
class DeleteTopics:
    """Names are resolved to ids in the decision; the record has the id."""

    topics: tuple[TopicName, ...]


class TopicDeleted(NamedTuple):
    """The result for one topic; both name and id if they are known."""

    name: str | None
    topic_id: UUID = ZERO_UUID
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


def decide_delete_topics(
    image: MetadataImage, op: DeleteTopics, options: DecisionOptions
) -> ControllerResult:
    """Reply: one TopicDeleted for each different name or id, in the order of the request."""
    check_topic_count(op.topics, DELETED_TOPICS_MAX)
    counts = Counter(op.topics)
    ids = {named.topic_id for named in op.topics if named.name is None}
    twice = {
        topic.topic_id
        for named in op.topics
        if (topic := image.topics.get(named.name or "")) and topic.topic_id in ids
    }
    records: list[MetadataRecord] = []
    results: list[TopicDeleted] = []
    for named in counts:
        if named.name is None and named.topic_id in twice:
            continue  # refused under its name
        try:
            topic = _topic_to_delete(image, named, counts[named])
        except MqError as error:
            results.append(TopicDeleted(named.name, named.topic_id, error.code, error.message))
            continue
        if topic.topic_id in twice:
            text = (
                "A topic is named at most once in a request, and here once by name and once by id."
            )
            results.append(
                TopicDeleted(topic.name, topic.topic_id, ErrorCode.INVALID_REQUEST, text)
            )
            continue
        records.append(DeleteTopic(topic.topic_id))
        results.append(TopicDeleted(topic.name, topic.topic_id))
    return ControllerResult(tuple(records), tuple(results))


def _topic_to_delete(image: MetadataImage, named: TopicName, times: int) -> TopicImage:
    name, topic_id = named
    if name is None:
        if topic_id == ZERO_UUID:
            raise MqError(
                ErrorCode.INVALID_REQUEST, "The request has neither the name nor the id of a topic."
            )
        if times > 1:
            raise MqError(ErrorCode.INVALID_REQUEST, "The request names a topic more than once.")
        if topic_id not in image.topics_by_id:
            raise MqError(ErrorCode.UNKNOWN_TOPIC_ID, f"No topic has the id {topic_id}.")
        return image.topics_by_id[topic_id]
    if topic_id != ZERO_UUID:
        raise MqError(
            ErrorCode.INVALID_REQUEST,
            "The request has both the name and the id of a topic: send one of them.",
        )
    if times > 1:
        raise MqError(ErrorCode.INVALID_REQUEST, "The request names a topic more than once.")
    if name not in image.topics:
        raise MqError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {name!r} does not exist.")
    return image.topics[name]
