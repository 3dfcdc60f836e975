"""Invariants inside the cluster, checked after every event. docs/INVARIANTS.md names the
invariants.

`Probes.look` checks only changes since the last call, so a run can call it after each of millions
of events. `validate` compares everything, also images and bytes, at times and at the end. A probe
reads the nodes' own objects and changes nothing. `violation` has the first violation. It is passed
to `on_violation`, and no probe runs after it.
"""

from __future__ import annotations

from collections.abc import Callable

from mqd.daemon import Daemon
from mqd.testing.probes import liveness
from mqd.testing.probes.counts import Counts
from mqd.testing.probes.groups import GroupProbe
from mqd.testing.probes.images import ImageProbe
from mqd.testing.probes.memory import MemoryProbe
from mqd.testing.probes.quorum import QuorumProbe
from mqd.testing.probes.replicas import ReplicaProbe
from mqd.testing.probes.shadows import Key, Shadow, World
from mqd.testing.probes.shares import ShareTerms
from mqd.testing.probes.whole import validate_all
from mqd.testing.violation import Violation
from mqd.types import TopicPartition


class Probes:
    """All probes of one run. `voters`: the ids that count for a majority. `may_lose(topic)`:
    whether disk faults of this run may lose acknowledged records of the topic.
    """

    def __init__(
        self,
        world: World,
        nodes: tuple[int, ...],
        *,
        voters: tuple[int, ...] | None = None,
        may_lose: Callable[[str], bool] | None = None,
    ) -> None:
        self.world = world
        self.nodes = nodes
        self.violation: str | None = None
        self.on_violation: Callable[[], None] = lambda: None
        self.on_restart: Callable[[int], None] = lambda _node: None
        self.on_life: Callable[[Daemon], None] = lambda _daemon: None
        self.groups: GroupProbe | None = None
        self.shares: ShareTerms | None = None
        self.memory: MemoryProbe | None = None
        self.counts = Counts()
        shadows: dict[Key, dict[int, Shadow]] = {}
        self._quorum = QuorumProbe(voters if voters is not None else nodes, self.counts)
        self._images = ImageProbe(shadows, self.counts)
        self._replicas = ReplicaProbe(
            world,
            self._images,
            shadows,
            may_lose if may_lose is not None else lambda _topic: False,
            self.counts,
        )
        self._lives: dict[int, tuple[int, Daemon | None]] = dict.fromkeys(nodes, (0, None))

    # -- events outside of the nodes

    def power_cut(self, node_id: int) -> None:
        """A node loses its unsynced bytes now."""
        for replicas in self._replicas.shadows.values():
            if node_id in replicas:
                replicas[node_id].lost_power = True

    def set_aside(self, node_id: int, partition: TopicPartition) -> None:
        """The files of a replica were damaged. Records may be missing until it has fetched them
        again.
        """
        shadow = self.shadow(node_id, partition)
        if shadow is not None:
            shadow.set_aside = True

    def shadow(self, node_id: int, partition: TopicPartition) -> Shadow | None:
        """The shadow of a replica, if any."""
        topic_id = self._replicas.names.get(partition)
        if topic_id is None:
            return None
        return self._replicas.shadows.get((topic_id, partition.partition), {}).get(node_id)

    def is_committed(self, partition: TopicPartition, offset: int) -> bool:
        """Whether some leader's high watermark has passed `offset`."""
        topic_id = self._replicas.names.get(partition)
        if topic_id is None:
            return False
        committed = self._replicas.committed.get((topic_id, partition.partition))
        return committed is not None and offset < committed.end

    def committed_end(self, partition: TopicPartition) -> int:
        """The end offset of the committed records of a partition."""
        key = self._replicas.names[partition], partition.partition
        committed = self._replicas.committed.get(key)
        return committed.end if committed is not None else 0

    def unstable(self) -> str | None:
        """See liveness.py."""
        return liveness.unstable(self._live())

    def undeleted(self) -> str | None:
        """See liveness.py."""
        return liveness.undeleted(self._live())

    def unreleased(self) -> str | None:
        """See liveness.py."""
        return liveness.unreleased(self._live())

    # -- after each event

    def look(self, node_id: int) -> None:
        """Check after a step of this node. Never raises: see `violation`."""
        if self.violation is not None:
            return
        self.counts.looks += 1
        daemon = self.world.daemon(node_id)
        if daemon is None:
            return
        life, known = self._lives[node_id]
        try:
            if daemon is not known:
                life += 1
                self._lives[node_id] = life, daemon
                self._begin_life(node_id)
                self.on_life(daemon)
            self._quorum.look(node_id, daemon)
            self._images.look(node_id, daemon)
            self._replicas.look(node_id, life, daemon)
            if self.shares is not None:
                self.shares.look(node_id, daemon)
            if self.memory is not None:
                self.memory.look(daemon)
            if self.groups is not None:
                self.groups.look(node_id, daemon, lambda *key: self._images.newest.get(key))
        except Violation as violation:
            self.violation = str(violation)
            self.on_violation()

    def _begin_life(self, node_id: int) -> None:
        self._quorum.begin_life(node_id)
        self._images.begin_life(node_id)
        self._replicas.begin_life(node_id)
        self.on_restart(node_id)

    # -- everything

    def validate(self) -> None:
        """Compare the whole images, bytes and producers of all live nodes. Never raises."""
        if self.violation is not None:
            return
        try:
            validate_all(self.world, self._live(), self._replicas.shadows)
        except Violation as violation:
            self.violation = str(violation)
            self.on_violation()

    def _live(self) -> dict[int, Daemon]:
        return {
            node_id: daemon
            for node_id in self.nodes
            if (daemon := self.world.daemon(node_id)) is not None
        }
