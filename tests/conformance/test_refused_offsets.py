"""Every client retries OffsetFetch while the coordinator has unstable offsets, then resumes at the
committed offset.

A single node always has stable offsets. Therefore a proxy replaces some of its responses with the
response that the node's own handler builds in such a case.
"""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from chaos.node import LOOPBACK, Node, free_port
from mqd.coordinator.group.offset_fetch import FetchOffsets
from mqd.errors import ErrorCode
from mqd.protocol.apis.offset_fetch import API
from mqd.protocol.request_header import decode_request_header
from mqd.protocol.schema import encode_response_header
from mqd.protocol.slices import all_slices
from mqd.server.handlers.offset_fetch import refusal

from .batches import batch
from .conftest import GROUP_OPTIONS
from .members import KINDS, Group
from .test_wire_committed_offsets import SOON, commit, fetch_group
from .wire import Wire, create_topic, found_coordinator, produce, until

# Kafka's response has no rows in such a case, which aiokafka interprets as "from the beginning"
pytestmark = pytest.mark.mqd_only
RECORDS, READ, REFUSALS = 20, 10, 3
SESSION_MS = 10_000


class Refusing(socketserver.ThreadingTCPServer):
    """A proxy in front of a node."""

    daemon_threads = False

    def __init__(self, port: int, node_port: int) -> None:
        super().__init__((LOOPBACK, port), _Passing)
        self.node_port = node_port
        self.code = ErrorCode.NONE
        self.left = 0

    def begin(self, code: ErrorCode, count: int) -> None:
        """Refuse that many OffsetFetch requests from now on."""
        self.code, self.left = code, count


class _Passing(socketserver.BaseRequestHandler):
    """One connection of a client."""

    server: Refusing
    request: socket.socket

    def handle(self) -> None:
        self.refused: dict[int, bytes] = {}
        """The responses that replace the node's, by correlation id."""
        with (
            socket.create_connection((LOOPBACK, self.server.node_port)) as self.node,
            suppress(OSError),
        ):
            back = threading.Thread(target=self._pass, args=(self.node, self.request, self._answer))
            back.start()
            try:
                self._pass(self.request, self.node, self._question)
            finally:
                back.join()

    def _pass(
        self, source: socket.socket, target: socket.socket, look: Callable[[bytes], bytes]
    ) -> None:
        with suppress(OSError), source.makefile("rb") as stream:
            while len(size := stream.read(4)) == 4:
                frame = look(stream.read(int.from_bytes(size, "big")))
                target.sendall(len(frame).to_bytes(4, "big") + frame)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _question(self, frame: bytes) -> bytes:
        if int.from_bytes(frame[:2], "big") == API.key and self.server.left:
            self.server.left -= 1
            header = decode_request_header(frame)
            version = header.api_version
            answer = refused(
                API.decode_request(version, frame, header.body_position), self.server.code, version
            )
            self.refused[header.correlation_id] = encode_response_header(
                API, version, header.correlation_id
            ) + API.encode_response(version, answer)
        return frame

    def _answer(self, frame: bytes) -> bytes:
        return self.refused.pop(int.from_bytes(frame[:4], "big"), frame)


def refused(request: Any, code: ErrorCode, version: int) -> Mapping[str, Any]:
    if version < 8:
        return all_slices(refusal(FetchOffsets(request.group_id, request.topics), code, version))
    return {
        "groups": [
            all_slices(refusal(FetchOffsets(group.group_id, group.topics), code, version))
            for group in request.groups
        ]
    }


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Refusing]:
    port = free_port()
    node = Node(tmp_path, GROUP_OPTIONS)
    with node.peers.open("a") as file:
        file.write(f'advertised_host = "{LOOPBACK}"\nadvertised_port = {port}\n')
    with ExitStack() as running:
        server = running.enter_context(Refusing(port, node.port))
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        node.start()
        try:
            yield server
        finally:
            node.kill()  # this ends all connections
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    "code", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR]
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_member_retries(
    proxy: Refusing, new_name: Callable[[], str], kind: str, code: ErrorCode
) -> None:
    host, port = LOOPBACK, proxy.server_address[1]
    with Wire(host, port) as wire:
        topic = create_topic(wire, new_name())
        group = Group(kind, f"{host}:{port}", new_name(), topic, session_ms=SESSION_MS)
        assert (
            produce(wire, topic, batch(*(b"%d" % number for number in range(RECORDS)))).error_code
            == 0
        )
        found_coordinator(wire, group.group, 0)
        until(
            lambda: fetch_group(wire, group.group, None).error_code not in SOON,
            "the coordinator has loaded",
        )
        assert commit(wire, group.group, topic, {0: READ}) == {0: 0}
    proxy.begin(code, REFUSALS)
    try:
        group.join()
        group.wait_consumed((0, offset) for offset in range(READ, RECORDS))
        assert not proxy.left and not group.helped() and not group.failures()
    finally:
        group.end()
