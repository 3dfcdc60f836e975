"""Invariants of the replicas of each partition (I1 to I5, I8).

Every replica must agree with the committed batches below its own high watermark, and every in-sync
replica below that of the leader. The whole log of every new leader must agree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from mqd.daemon import Daemon
from mqd.testing.probes.comparison import commit_batches, compare
from mqd.testing.probes.counts import Counts
from mqd.testing.probes.images import ImageProbe
from mqd.testing.probes.shadows import Committed, Key, Shadow, World, extend
from mqd.testing.violation import Violation
from mqd.types import TopicPartition


class ReplicaProbe:
    """The shadows of all replicas, and the committed batches of their partitions."""

    def __init__(
        self,
        world: World,
        images: ImageProbe,
        shadows: dict[Key, dict[int, Shadow]],
        may_lose: Callable[[str], bool],
        counts: Counts,
    ) -> None:
        self._world = world
        self._may_lose = may_lose
        self._counts = counts
        self.shadows = shadows
        self.committed: dict[Key, Committed] = {}
        self.names: dict[TopicPartition, UUID] = {}
        self._images = images
        self._seen: dict[int, dict[int, tuple[Any, ...]]] = {}
        """Node -> id() of a replica object of its current process -> the state of the replica at
        the last check.
        """

    def begin_life(self, node_id: int) -> None:
        """A new process of this node runs."""
        self._seen[node_id] = {}

    def look(self, node_id: int, life: int, daemon: Daemon) -> None:
        """Check after a step of a node. A replica without changes must cost almost nothing."""
        seen = self._seen[node_id]
        for partitions in daemon.replica.by_name.values():
            for partition in partitions.values():
                log = partition.log
                state = (
                    partition.high_watermark,
                    log.written_end_offset,
                    log.log_start_offset,
                    (log.truncations, log.cleanings),
                    partition.leader_epoch,
                    partition.is_leader,
                    partition.assignment,
                    log.failure,
                    log,
                    partition,  # keep a reference, so that no other object gets its id
                )
                if seen.get(id(partition)) == state:
                    continue
                topic_partition = log.topic_partition
                key = (log.topic_id, topic_partition.partition)
                try:
                    shadow = self.shadows[key][node_id]
                except KeyError:
                    self.names[topic_partition] = log.topic_id
                    shadow = self.shadows.setdefault(key, {}).setdefault(node_id, Shadow(life=life))
                    self.committed.setdefault(key, Committed())
                before, shadow.state = shadow.state, state
                self._look_at_replica(node_id, life, partition, key, shadow, before)
                seen[id(partition)] = state

    def _look_at_replica(
        self,
        node_id: int,
        life: int,
        partition: Any,
        key: Key,
        shadow: Shadow,
        before: tuple[Any, ...],
    ) -> None:
        log, topic_partition = partition.log, partition.log.topic_partition
        committed = self.committed[key]
        high_watermark = partition.high_watermark
        where = f"{topic_partition} on node {node_id}"
        if not log.log_start_offset <= high_watermark <= log.log_end_offset:
            raise Violation(
                f"I4: {where}: start {log.log_start_offset}, high watermark {high_watermark}, "
                f"end {log.log_end_offset}"
            )
        if (
            shadow.life == life
            and not shadow.set_aside
            and not shadow.unassigned
            and not shadow.lies_below(committed.cleaned_to)
        ):
            if high_watermark < shadow.high_watermark and not self._may_lose(topic_partition.topic):
                raise Violation(
                    f"I5: the high watermark of {where} went back from "
                    f"{shadow.high_watermark} to {high_watermark}"
                )
            if partition.last_stable_offset < shadow.stable and not self._may_lose(
                topic_partition.topic
            ):
                raise Violation(
                    f"the last stable offset of {where} went back from {shadow.stable} to "
                    f"{partition.last_stable_offset}"
                )
        elif high_watermark < shadow.high_watermark:
            self._counts.high_watermark_after_restart_lower += 1
        if log.cleaned_to is not None or log.cleanings:
            committed.cleaned_to = max(committed.cleaned_to, log.segments[-1].base_offset)
        if (
            log.written_end_offset != shadow.end
            or (log.truncations, log.cleanings) != (shadow.cuts, shadow.cleanings)
            or shadow.life != life
        ):
            # its last log, and the state of that
            died_in_cut = (
                shadow.life != life and bool(before) and before[8].truncations != before[3][0]
            )
            self._read_log(node_id, life, log, shadow, died_in_cut, where)
        self._look_at_stable(partition, shadow, where)
        shadow.log_start_offset = log.log_start_offset
        shadow.life, shadow.high_watermark = life, high_watermark
        if partition.is_leader:
            became = not before or before[4] != partition.leader_epoch or not before[5]
            if became:
                self._images.lead(
                    log.topic_id, topic_partition.partition, partition.leader_epoch, node_id, where
                )
                self._counts.leader_changes += 1
                if shadow.set_aside:
                    raise Violation(
                        f"I8: {where} leads in epoch {partition.leader_epoch}, and its log is "
                        "damaged or gone"
                    )
                if not self._may_lose(topic_partition.topic):
                    end = committed.end_before(partition.leader_epoch)
                    compare(
                        shadow,
                        committed,
                        end,
                        f"I1: the new leader of epoch {partition.leader_epoch}, {where}",
                    )
            if not self._may_lose(topic_partition.topic):
                self._look_at_leader(partition, key, committed, where)
        elif (
            high_watermark > committed.end
            and not self._may_lose(topic_partition.topic)
            and (epoch := _epoch_led_in_passing(log, shadow, before)) is not None
        ):
            commit_batches(shadow, committed, high_watermark, epoch, where)
        shadow.latest_epoch = log.epochs.latest
        if not shadow.set_aside and not self._may_lose(topic_partition.topic):
            if high_watermark > committed.end:
                raise Violation(
                    f"I2: the high watermark of {where} is {high_watermark}; no leader's was "
                    f"above {committed.end}"
                )
            compare(
                shadow,
                committed,
                high_watermark,
                f"replicas differ below the high watermark: {where}",
            )

    @staticmethod
    def _look_at_stable(partition: Any, shadow: Shadow, where: str) -> None:
        """`read_committed` consumers must get no records from the first open transaction on."""
        log, stable = partition.log, partition.last_stable_offset
        if not log.log_start_offset <= stable <= partition.high_watermark:
            raise Violation(
                f"{where}: start {log.log_start_offset}, stable {stable}, high watermark "
                f"{partition.high_watermark}"
            )
        shadow.stable = stable
        first = min(shadow.open.values(), default=stable)
        if (
            log.log_start_offset <= first < stable
            and not shadow.set_aside
            and not log.cleanings
            and not log.cleaned_to
        ):
            raise Violation(
                f"the last stable offset of {where} is {stable}, and the transaction that "
                f"begins at {first} has no end"
            )

    def _look_at_leader(self, partition: Any, key: Key, committed: Committed, where: str) -> None:
        """Batches that a leader's high watermark passes must be on every in-sync replica. From now
        on they are committed.
        """
        high_watermark = partition.high_watermark
        shadows = self.shadows[key]
        own = shadows[partition.node_id]
        if high_watermark > committed.end:
            commit_batches(own, committed, high_watermark, partition.leader_epoch, where)
        newest = self._images.newest.get(key)
        for member in sorted({*partition.assignment.isr, partition.node_id}):
            if (
                newest is not None
                and newest.partition_epoch > partition.assignment.partition_epoch
                and member not in newest.isr
            ):
                # the member was removed from the ISR, which this leader does not know yet: the
                # member may have removed its log
                continue
            shadow = shadows.get(member)
            if shadow is None:
                if high_watermark > committed.first_offset:
                    raise Violation(
                        f"I1: {where} has high watermark {high_watermark}, and in-sync "
                        f"replica {member} has no log"
                    )
            elif not shadow.lost_power and not shadow.set_aside:
                compare(
                    shadow, committed, high_watermark, f"I1: in-sync replica {member} of {where}"
                )

    def _read_log(
        self, node_id: int, life: int, log: Any, shadow: Shadow, died_in_cut: bool, where: str
    ) -> None:
        """Update the shadow from the files, and check truncations. A kill during a truncation loses
        no records: those that the leader does not have are truncated in any case.
        """
        is_same = (log.truncations, log.cleanings, life) == (
            shadow.cuts,
            shadow.cleanings,
            shadow.life,
        )
        # An empty log may continue at a later offset: there is nothing to truncate.
        is_longer = log.segments[0].base_offset <= shadow.end < log.written_end_offset
        if is_same and is_longer:
            extend(self._world, node_id, log, shadow, where, self._counts)
            return
        before, end_before = shadow.batches, shadow.end
        shadow.compared_below = 0
        shadow.start = log.segments[0].base_offset
        fresh = Shadow()
        fresh.end = log.segments[0].base_offset
        extend(self._world, node_id, log, fresh, where, self._counts)
        # at its leader's log start, which is after the replica's end
        was_reset = log.segments[0].base_offset > end_before
        older = (
            []
            if was_reset
            else [batch for batch in before if batch.next_offset <= log.segments[0].base_offset]
        )
        shadow.places = [(-1, -1)] * len(older) + fresh.places
        shadow.batches = older + fresh.batches
        shadow.open = fresh.open
        kept = next(
            (at for at, (old, new) in enumerate(zip(before, shadow.batches)) if old != new),
            min(len(before), len(shadow.batches)),
        )
        shadow.agreed = min(shadow.agreed, kept)
        cut_at = before[kept].base_offset if kept < len(before) and not was_reset else end_before
        # compaction has removed the missing batches, and records of others
        if log.cleaned_to is not None or log.cleanings:
            cut_at, shadow.agreed = (
                min(shadow.batches[-1].next_offset if shadow.batches else 0, end_before),
                0,
            )
        excused = (
            shadow.lost_power
            or shadow.set_aside
            or shadow.unassigned
            or self._may_lose(log.topic_partition.topic)
        )
        excused |= shadow.lies_below(
            self.committed[log.topic_id, log.topic_partition.partition].cleaned_to
        )
        if life != shadow.life and not died_in_cut:
            if cut_at < end_before and not excused:
                raise Violation(
                    f"I1: a restarted process lost what was written: {where} ended at "
                    f"{end_before}, now at {cut_at}"
                )
        elif cut_at < end_before:
            self._counts.truncations += 1
            if cut_at < shadow.high_watermark:
                self._counts.truncated_below_high_watermark += 1
                if not excused:
                    raise Violation(
                        f"I8: {where} was cut to {cut_at}, below its high watermark "
                        f"{shadow.high_watermark}"
                    )
        shadow.lost_power = shadow.set_aside = shadow.unassigned = False
        shadow.end, shadow.cuts, shadow.cleanings = (
            log.written_end_offset,
            log.truncations,
            log.cleanings,
        )


def _epoch_led_in_passing(log: Any, shadow: Shadow, before: tuple[Any, ...]) -> int | None:
    """The epoch in which the node has led since the last check, if it does not lead now. One step
    may apply several metadata entries, and the high watermark may move between them.

    Either the node led at the last check, or its leader epochs show it. Only a leader adds an epoch
    before its log has a batch of it.
    """
    latest: int = log.epochs.latest
    if latest > shadow.latest_epoch and not (
        shadow.batches and shadow.batches[-1].leader_epoch == latest
    ):
        return latest
    return before[4] if before and before[5] else None
