"""Topics that are created in the background because a client requested them (Kafka's
AutoTopicCreationManager). Clients retry until the topic exists.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import trio

from mqd.config import NodeConfig
from mqd.controller.channel import OWN_REQUEST_TIMEOUT_S, ControllerChannel
from mqd.controller.configs import effective_node_config
from mqd.controller.create_topics import CreateTopics
from mqd.controller.internal_topics import new_topic_requests
from mqd.controller.operations import Operations
from mqd.errors import ErrorCode, MqError
from mqd.io.entropy import Entropy
from mqd.limits import TOPICS_CREATED_SOON_MAX
from mqd.types import NodeId

logger = logging.getLogger(__name__)


class TopicCreation:
    """Sends CreateTopics requests for the topics that clients want."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        operations: Operations,
        channel: ControllerChannel,
        config: NodeConfig,
        entropy: Entropy,
        nodes: int,
    ) -> None:
        self._node_id = node_id
        self._operations = operations
        self._channel = channel
        self._config = config
        self._entropy = entropy
        self._nodes = nodes
        self._wanted = _WantedTopics()

    def create_topic_soon(self, name: str) -> None:
        """Create a topic in the background, with the defaults of its kind. Clients retry."""
        self._wanted.want(name)

    def creates_topic_soon(self, name: str) -> bool:
        """Whether the topic is wanted already."""
        return name in self._wanted

    async def run(self) -> None:
        """Create the wanted topics, until cancelled."""
        async for names in self._wanted:
            config = effective_node_config(self._config, self._operations.image, self._node_id)
            for rows in new_topic_requests(
                (name for name in names if name not in self._operations.image.topics),
                config,
                self._nodes,
            ):
                try:
                    await self._create_topics(rows, config)
                except MqError:
                    break  # no controller now: a retry of the client requests the topic again

    async def _create_topics(self, rows: list[dict[str, Any]], config: NodeConfig) -> None:
        request = {
            "topics": rows,
            "timeout_ms": int(OWN_REQUEST_TIMEOUT_S * 1000),
            "validate_only": False,
        }

        async def here() -> Mapping[str, Any]:
            created = await self._operations.submit(
                CreateTopics.of_request(request, config, self._entropy.uuid, self._nodes)
            )
            return {"topics": [row._asdict() for row in created]}

        response = await self._channel.at_controller(
            here, "create_topics", 7, request, timeout=OWN_REQUEST_TIMEOUT_S
        )
        _log_errors(response["topics"])


class _WantedTopics:
    """The names of wanted topics. One task iterates over them: each step gives all names that are
    wanted at that time, and removes those of the step before.
    """

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._wanted = trio.Event()
        self._taken: tuple[str, ...] = ()

    def want(self, name: str) -> None:
        """Add a name. Ignored if too many wait already: clients retry."""
        if len(self._names) < TOPICS_CREATED_SOON_MAX:
            self._names[name] = None
            self._wanted.set()

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __aiter__(self) -> _WantedTopics:
        return self

    async def __anext__(self) -> tuple[str, ...]:
        for name in self._taken:
            del self._names[name]
        await self._wanted.wait()
        self._wanted = trio.Event()
        self._taken = tuple(self._names)
        return self._taken


def _log_errors(rows: Iterable[Mapping[str, Any]]) -> None:
    """Log why topics were not created (rows of a CreateTopics response): no client gets the
    response.
    """
    for row in rows:
        if row["error_code"] not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            logger.warning(
                "cannot create a requested topic topic=%s reason=%s",
                row["name"],
                row["error_message"],
            )
