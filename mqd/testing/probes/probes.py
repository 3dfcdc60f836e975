"""What must hold inside the cluster, checked after every event. docs/INVARIANTS.md names the
invariants.

`Probes.look` compares only what changed since the latest call, so it may be called after each of
millions of events. `validate` compares everything, images and bytes included, at times and at the
end. A probe reads the nodes' own objects and changes nothing in them. `violation` has the first
violation; `on_violation` is called for it, and no probe runs after it.
"""

from __future__ import annotations

from collections.abc import Callable

from mqd.daemon import Daemon
from mqd.testing.probes import liveness
from mqd.testing.probes.counts import Counts
from mqd.testing.probes.groups import GroupProbe
from mqd.testing.probes.images import ImageProbe
from mqd.testing.probes.quorum import QuorumProbe
from mqd.testing.probes.replicas import ReplicaProbe
from mqd.testing.probes.shadows import Key, Shadow, World
from mqd.testing.probes.whole import validate_all
from mqd.testing.violation import Violation
from mqd.types import TopicPartition


class Probes:
    """See the head of the file. `voters` are the ids that count for a majority. `may_lose(topic)`
    returns whether the disk faults of this run may lose acknowledged records of that topic.
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
        """A node will lose its unsynced bytes now."""
        for replicas in self._replicas.shadows.values():
            if node_id in replicas:
                replicas[node_id].lost_power = True

    def set_aside(self, node_id: int, partition: TopicPartition) -> None:
        """The files of a replica were damaged: records may be missing until it has fetched them
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
        """The end of what is committed of a partition."""
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

    # -- looking

    def look(self, node_id: int) -> None:
        """After a step of this node. Never raises: see `violation`."""
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
        """Compare images, bytes and producers of all live nodes, whole. Never raises."""
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
