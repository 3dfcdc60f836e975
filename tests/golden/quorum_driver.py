"""Commands on the voters of the metadata quorum: mqd/raft/node.py, elections.py, voters.py and
journal.py, message by message. The seed of the election timeouts is fixed.
"""

from __future__ import annotations

from pathlib import Path

from mqd.raft.codec import PreVote, PreVoteReply, decode_message
from tests.raft.test_voter_sets import Files, formed


class QuorumDriver:
    def __init__(self, directory: Path) -> None:
        self._cluster: Files | None = None
        self._cut: set[int] = set()
        self._lost: dict[int, dict[str, None]] = {}

    def quorum(self, *, nodes: int, voters: tuple[int, ...]) -> str:
        """A new cluster in which one node leads."""
        self._cluster = formed(nodes, frozenset(voters))
        return self.leader()

    def cut_off(self, *nodes: int) -> None:
        """These nodes exchange no messages with the others."""
        self._cut.update(nodes)

    def connect(self) -> None:
        self._cut.clear()
        self._files.meet(self._files.ids)

    def run(self, seconds: int) -> None:
        """Time passes; nodes exchange their messages within their side of the cut."""
        files = self._files
        sides = [sorted(self._cut), [one for one in files.ids if one not in self._cut]]
        for _ in range(seconds * 5):
            files.advance()
            for side in sides:
                for node in side:
                    files.tick(node)
                    for to, message in files._empty(node):
                        if to not in side:
                            kind = type(decode_message(message)).__name__
                            self._lost.setdefault(node, {})[kind] = None
                        elif files.refusal(node, to) is None:
                            files.deliver(node, to, message)

    def lost_messages(self, node: int) -> str:
        """The kinds of messages that the node has sent across the cut."""
        return ",".join(self._lost[node])

    def pre_vote(self, node: int, *, to: int) -> str:
        """A request for a pre-vote by a node that has every entry; whether it is granted."""
        files = self._files
        files._empty(to)
        index, term = files.log(node)[-1]
        files.deliver(node, to, PreVote(files.term(node) + 1, index, term))
        replies = [decode_message(message) for _, message in files._empty(to)]
        granted = [one for one in replies if isinstance(one, PreVoteReply) and one.granted]
        return "granted" if granted else "not granted"

    def restart(self, *nodes: int, voters: tuple[int, ...]) -> None:
        """Restart nodes with these voters in the peers file."""
        for node in nodes:
            self._files.restart(node, frozenset(voters))

    def propose(self, value: str) -> None:
        """The leader appends an entry."""
        self._files.add(self._leader(), value)

    # -- what it shows

    def leader(self, *, of: tuple[int, ...] = ()) -> str:
        """The node that leads, among these nodes if some are cut off."""
        leader = self._leader(of)
        return f"leader={leader} term={self._files.term(leader)}"

    def terms(self) -> str:
        files = self._files
        return " ".join(f"{node}:{files.term(node)}" for node in files.ids)

    def voters(self) -> list[str]:
        """The committed voter set on each node."""
        shown: dict[str, list[str]] = {}
        for node in self._files.ids:
            committed = self._files.nodes[node].voter_view.committed
            voters = ",".join(map(str, sorted(committed.voters)))
            shown.setdefault(f"epoch={committed.epoch} voters={voters}", []).append(str(node))
        return [f"{what} on {','.join(nodes)}" for what, nodes in shown.items()]

    def values(self, node: int) -> str:
        return ",".join(self._files.values(node)) or "none"

    def problem(self, node: int) -> str:
        """What the node reports of its peers file."""
        return self._files.nodes[node].peers_file_problem(self._files.now) or "none"

    def refuses(self, node: int, other: int) -> str:
        """Why two nodes exchange no messages."""
        return self._files.refusal(node, other) or "no"

    @property
    def _files(self) -> Files:
        assert self._cluster is not None, "no `quorum` before this"
        return self._cluster

    def _leader(self, among: tuple[int, ...] = ()) -> int:
        (leader,) = self._files.leaders(list(among) or self._files.ids)
        return leader
