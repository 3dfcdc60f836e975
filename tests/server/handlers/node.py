"""A node for handlers: the real controller on a quorum that commits at once; requests and responses
are encoded and decoded.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import asynccontextmanager
from inspect import isawaitable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trio

from mqd.config import NodeConfig, PeerNode, Peers
from mqd.controller.image import MetadataImage
from mqd.controller.service import ControllerService
from mqd.errors import MqError
from mqd.io.entropy import RandomEntropy
from mqd.limits import ADMIN_REQUESTS_AT_ONCE
from mqd.protocol.apis import by_name
from mqd.protocol.request_header import RequestHeader
from mqd.protocol.slices import all_slices
from mqd.security.authorizer import Authorizer
from mqd.server.context import CLIENT, Context
from mqd.server.fair_slots import FairSlots
from tests.controller.cluster import CLUSTER, SESSIONS, FakeQuorum, TrioClock, make_controller


class FakeNode(SimpleNamespace):
    """`Context.node` for the handlers under test, and `request` for the tests."""

    controller: ControllerService
    quorum: FakeQuorum
    authorizer = Authorizer(enforces=False)
    quotas = SimpleNamespace(keys=frozenset())
    mutate: Any = None
    """Replaces the quota of changes of the metadata."""

    @property
    def image(self) -> MetadataImage:
        return self.controller.image

    async def request(
        self,
        api_name: str,
        version: int,
        *,
        listener: str = CLIENT,
        peer_node: int | None = None,
        **request: Any,
    ) -> Any:
        """The decoded response; request and response are both encoded in their version."""
        from importlib import import_module

        api = by_name(api_name)
        handler = import_module(f"mqd.server.handlers.{api_name}")
        decoded = api.decode_request(version, api.encode_request(version, request))
        header = RequestHeader(api.key, version, 7, "test", 0)
        now = trio.current_time()
        node: Any = self  # the parts of a Node that these handlers need
        context = Context(
            node=node, header=header, listener=listener, peer="test", now=now, peer_node=peer_node
        )
        if self.mutate is not None:
            context.mutate = self.mutate
        try:
            response: Any = handler.handle(context, decoded)
            if isawaitable(response):
                response = await response
        except MqError as error:
            response = handler.failed(decoded, error)
        if isinstance(response, Generator):
            response = all_slices(response)
        assert isinstance(response, Mapping)
        return api.decode_response(version, api.encode_response(version, response))

    async def create(
        self, *names: str, partitions: int = 1, factor: int = 1, **configs: str
    ) -> None:
        """Create topics; configs have underscores for dots."""
        rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        topics = [
            {
                "name": name,
                "num_partitions": partitions,
                "replication_factor": factor,
                "configs": rows,
            }
            for name in names
        ]
        response = await self.request("create_topics", 7, topics=topics)
        assert [topic.error_code for topic in response.topics] == [0] * len(names)


@asynccontextmanager
async def running_node(**options: str) -> AsyncIterator[FakeNode]:
    """Node 1, registered and unfenced. Options with underscores for dots."""
    dotted = {key.replace("_", "."): value for key, value in options.items()}
    controller, quorum = make_controller(options=dotted)
    peer = PeerNode(1, "127.0.0.1", 9091, 19091, None, True, "localhost", 9091)
    async with trio.open_nursery() as nursery:
        await nursery.start(controller.run)
        yield FakeNode(
            node_id=1,
            peers=Peers(CLUSTER, {1: peer}, Path("peers.toml")),
            config=NodeConfig.load(overrides={**SESSIONS, **dotted}),
            clock=TrioClock(),
            entropy=RandomEntropy(random.Random(2)),
            controller=controller,
            quorum=quorum,
            replica=SimpleNamespace(in_contact=True),
            raft=SimpleNamespace(speaks_handshake_v3=lambda _node_id: True),
            admin_slots=FairSlots(ADMIN_REQUESTS_AT_ONCE),
        )
        nursery.cancel_scope.cancel()
