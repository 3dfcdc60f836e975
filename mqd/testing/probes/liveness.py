"""Conditions that must become true after the end of all faults. Each function returns what is
missing, or None.
"""

from __future__ import annotations

from mqd.testing.probes.whole import Live


def unstable(live: Live) -> str | None:
    """A partition in which, by its leader, an open transaction blocks readers of committed
    records.
    """
    for daemon in live.values():
        for partitions in daemon.replica.by_name.values():
            for partition in partitions.values():
                if (
                    partition.is_leader
                    and partition.last_stable_offset < partition.log.log_end_offset
                ):
                    place = partition.log.topic_partition
                    return (
                        f"the end of a transaction in {place}, stable up to "
                        f"{partition.last_stable_offset}"
                    )
    return None


def undeleted(live: Live) -> str | None:
    """A replica that still has records that its leader has deleted."""
    for leader, daemon in live.items():
        for partitions in daemon.replica.by_name.values():
            for partition in partitions.values():
                place, start = partition.log.topic_partition, partition.log.log_start_offset
                for follower in (
                    partition.followers
                    if partition.is_leader and leader not in partition.followers
                    else ()
                ):
                    copy = live[follower].replica.get(place) if follower in live else None
                    if copy is not None and copy.log.log_start_offset < start:
                        return (
                            f"deletion of the records of {place} below {start} on node {follower}"
                        )
    return None


def unreleased(live: Live) -> str | None:
    """A node whose pools count more bytes than its connections use (I14). Requests in tasks count,
    too, for a short time.
    """
    for node_id, daemon in live.items():
        server = daemon.server
        if server is None:
            continue
        for kind, pool in server.memory.request_pools.items():
            connections = [one for one in server._connections if one.listener == kind]
            counted = pool.bytes, server.memory.response_pools[kind].bytes
            held = (
                sum(one.held_bytes for one in connections),
                sum(one.send_queue.unsent_bytes for one in connections),
            )
            if counted != held:
                return (
                    f"release of memory on node {node_id}: {counted} bytes of requests "
                    f"and responses are counted, {held} are held"
                )
    return None
