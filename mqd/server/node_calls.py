"""Requests of this node to coordinators and leaders of its cluster, this node included, for parts
that are clients of the cluster themselves (mqd/relay/).

A request to another node travels on a peer connection. A request to this node goes to the same
handler, without a connection. Neither is authorized or throttled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import CoroutineType, GeneratorType
from typing import Any
from zlib import crc32

from mqd.coordinator.service import CoordinatorService
from mqd.errors import ErrorCode, MqError
from mqd.protocol import apis
from mqd.protocol.request_header import RequestHeader
from mqd.server.context import PEER, Context, Node
from mqd.server.forward import RELAY_CONNECTIONS, Forwarder
from mqd.server.node_produce import produce
from mqd.server.served_apis import Handler
from mqd.server.slices import finished_in_slices
from mqd.types import NO_NODE, NodeId, TopicPartition


class NodeCalls:
    """Implements mqd.relay.ports.Calls."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        node: Callable[[], Node],
        forward: Forwarder,
        create_topic: Callable[[str], None],
        min_insync_replicas: Callable[[str], int],
    ) -> None:
        """`node()`: this node, once it serves. `create_topic(name)`: creates an internal topic
        soon, if it does not exist. `min_insync_replicas(topic)`: the config of a topic."""
        self._node_id = node_id
        self._node = node
        self._forward = forward
        self._create_topic = create_topic
        self._min_insync_replicas = min_insync_replicas

    def transaction_coordinator(self, transactional_id: str) -> NodeId | None:
        return self._coordinator(self._node().transactions, transactional_id)

    def group_coordinator(self, group_id: str) -> NodeId | None:
        return self._coordinator(self._node().groups, group_id)

    def leader_of(self, topic_partition: TopicPartition) -> NodeId | None:
        partition = self._node().image.partition(*topic_partition)
        return None if partition is None or partition.leader == NO_NODE else partition.leader

    def problem_of(self, topic: str) -> MqError | None:
        image = self._node().image
        found = image.topics.get(topic)
        if found is None:
            return None
        wanted = self._min_insync_replicas(topic)
        for index, partition in enumerate(found.partitions):
            topic_partition = TopicPartition(topic, index)
            if partition.leader == NO_NODE:
                return MqError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic_partition} has no leader")
            least, count = min(wanted, len(partition.replicas)), len(partition.isr)
            if count < least:
                return MqError(
                    ErrorCode.NOT_ENOUGH_REPLICAS,
                    f"in-sync replicas of {topic_partition}: {count}, min.insync.replicas: {least}",
                )
        return None

    async def request(
        self, node_id: NodeId, owner: str, api: str, version: int, body: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        if node_id == self._node_id:
            return await self._handled(api, version, body)
        lane = f"relay {crc32(owner.encode()) % RELAY_CONNECTIONS}"
        return await self._forward(node_id, api, version, body, lane)

    def _coordinator(self, coordinators: CoordinatorService, key: str) -> NodeId | None:
        try:
            index = coordinators.partition_of(key)
        except MqError as error:
            if error.code is not ErrorCode.COORDINATOR_NOT_AVAILABLE:
                raise
            self._create_topic(coordinators.topic)
            return None
        return self.leader_of(TopicPartition(coordinators.topic, index))

    async def _handled(self, name: str, version: int, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The response of this node."""
        node = self._node()
        declared = apis.by_name(name)
        assert declared is not None, name
        request = declared.decode_request(version, declared.encode_request(version, body))
        response = await self._response_of(node, name, version, request)
        # As a peer would receive it: with the defaults of the API.
        decoded: Mapping[str, Any] = declared.decode_response(
            version, declared.encode_response(version, response)
        )
        return decoded

    async def _response_of(self, node: Node, name: str, version: int, request: Any) -> Any:
        if name == "produce":
            return await produce(node, version, request)
        handler = _handler(name)
        header = RequestHeader(handler.api.key, version, 0, f"mqd-node-{self._node_id}", 0)
        context = Context(node, header, PEER, "127.0.0.1:0", node.clock.monotonic(), self._node_id)
        try:
            response: Any = handler.handle(context, request)
            if isinstance(response, GeneratorType):
                response = await finished_in_slices(response)
            elif isinstance(response, CoroutineType):
                response = await response
        except MqError as error:
            assert handler.failed is not None, name
            response = handler.failed(request, error)
            if isinstance(response, GeneratorType):
                response = await finished_in_slices(response)
        return response


@cache
def _handler(name: str) -> Handler:
    return Handler(name)
