"""The connections of this node with other nodes, in both directions.

Inbound: a connection of the peer listener completes a handshake, and `receive` takes its messages.
The next turn of the node takes them from the inbox. Outbound: one `PeerLink` for each node that
this one calls (transport.py).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from uuid import UUID

import trio

from mqd import limits
from mqd.errors import ProtocolError
from mqd.io.clock import Clock
from mqd.io.entropy import Entropy
from mqd.io.net import Network, Stream
from mqd.raft import codec
from mqd.raft.codec import Message
from mqd.raft.handshake import Credentials
from mqd.raft.handshake_runner import HandshakeRunner
from mqd.raft.machine import RaftStatus
from mqd.raft.node import RaftNode
from mqd.raft.transport import PeerLink
from mqd.raft.voters import VoterView

logger = logging.getLogger(__name__)


class PeerLinks:
    def __init__(
        self,
        addresses: Mapping[int, tuple[str, int]],
        credentials: Credentials,
        *,
        network: Network,
        clock: Clock,
        entropy: Entropy,
        silence: float,
        before_next_turn: Callable[[Callable[[RaftNode], None]], None],
    ) -> None:
        """`addresses`: of the nodes that this one calls. `silence`: see Incarnations.
        `before_next_turn(event)`: calls the event with the node, in order, and wakes it up."""
        self._clock = clock
        self._before_next_turn = before_next_turn
        self.on_peer_gone: Callable[[int], None] | None = None
        """Called with the id of a node whose process seems to have ended. The connection to it
        broke, and a new one was refused at once (ECONNREFUSED). A hint, not a proof.
        """
        self.handshakes = HandshakeRunner(
            credentials,
            clock,
            silence=silence,
            on_new_incarnation=self._on_new_incarnation,
            on_voter_view=self._on_voter_view,
        )
        self.links = {
            peer: PeerLink(peer, address, self, network=network, clock=clock, entropy=entropy)
            for peer, address in sorted(addresses.items())
        }
        self._inbox: deque[tuple[int, Message]] = deque()
        self.received = 0
        """Messages received since start."""

    # -- inbound

    def receive(
        self,
        node_id: int,
        body: bytes | memoryview,
        incarnation: UUID | None,
        status: RaftStatus,
    ) -> bool:
        """Whether the message is in the inbox. See RaftService.receive."""
        current = self.handshakes.incarnations.current(node_id)
        if incarnation is not None and incarnation != current:
            raise ProtocolError(
                f"a Raft message of node {node_id} from another process than the current one:"
                " do two processes use the same id?"
            )
        message = codec.decode_message(body)
        codec.check_plausible(message, term=status.term, last_index=status.last_index)
        self.received += 1
        if node_id in self.links:
            self.links[node_id].received_at = self._clock.monotonic()
        if len(self._inbox) >= limits.RAFT_INBOX_MESSAGES_MAX:
            return False
        self._inbox.append((node_id, message))
        return True

    def take_messages(self) -> Iterator[tuple[int, Message]]:
        """Sender and message, in the order of arrival; each one once."""
        while self._inbox:
            yield self._inbox.popleft()

    def _on_new_incarnation(self, node_id: int) -> None:
        """Messages of the earlier process must not be mixed with those of the new one (I28)."""
        self._inbox = deque(pair for pair in self._inbox if pair[0] != node_id)
        if node_id in self.links:
            self._before_next_turn(lambda node: node.restarted(node_id))

    def _on_voter_view(self, peer: int, view: VoterView) -> None:
        self._before_next_turn(lambda node: node.peer_configured(peer, view.configured))

    # -- outbound

    def start(self, nursery: trio.Nursery) -> None:
        for link in self.links.values():
            nursery.start_soon(link.run)

    def send(self, messages: Iterable[tuple[int, Message]]) -> None:
        for peer, message in messages:
            if peer in self.links:  # the log may have a voter that is no longer in any peers file
                self.links[peer].queue.put(message)

    def close(self) -> None:
        for link in self.links.values():
            link.queue.close()

    # -- transport.LinkOwner

    async def authenticate(self, stream: Stream, receiver: int) -> None:
        await self.handshakes.authenticate(stream, receiver)

    def on_link_opened(self, peer: int) -> None:
        self._before_next_turn(lambda node: node.connected(peer))

    def on_link_closed(self, peer: int) -> None:
        self._before_next_turn(lambda node: node.disconnected(peer))
        self.handshakes.versions.use_v3(peer)  # its next process may run this release

    def on_link_gone(self, peer: int) -> None:
        logger.info(
            "peer process ended node=%d reason='its connection broke and its port is closed'", peer
        )
        now = self._clock.monotonic()
        self._before_next_turn(lambda node: node.peer_gone(now, peer))
        if self.on_peer_gone is not None:
            self.on_peer_gone(peer)
