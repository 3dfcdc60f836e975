"""A real cluster inside one process: the production daemon with virtual time, a network and disks
in memory, and one seed.

A program that uses `mqd.client` can be tested with it against node failures, partitions and power
cuts. An hour of virtual time takes seconds:

    import trio
    from mqd.client import Admin, open_producer
    from mqd.testing import Cluster, run

    async def survives_a_restart() -> int:
        async with Cluster(nodes=3) as cluster:
            client = await cluster.client()
            await Admin(client).create_topic("orders", partitions=1, replication_factor=1)
            async with open_producer(client) as producer:
                await producer.send("orders", b"first")
                for node in cluster.nodes.values():
                    node.kill()
                await trio.sleep(3600)  # an hour without events takes almost no real time
                await cluster.start()
                return (await producer.send("orders", b"second")).offset

    assert run(survives_a_restart, seed=42) == 1

`run` is `trio.run` with a clock that jumps to the next event, and with a world in which `Cluster`
works. The seed determines the order of its scheduler. `@simulated(seed=42)` does the same for a
pytest test; `pytest.mark.parametrize` over seeds searches many runs. The same seed gives the same
run, event by event, with the same `cluster.trace.digest`. The test must be deterministic, too: it
draws from `cluster.world.random("purpose")`, reads the time from `trio.current_time()` or
`cluster.clock`, and does not iterate over sets of strings.

Faults of a node: `kill`, `power_cut`, both in the middle of a write, `stop`, `start`, `pause`,
`skew`. Faults of its disk (`cluster.disk(1)`): failed syncs, reads and writes, no space, flipped
bits. Faults of the network (`cluster.network`): partitions, held and slow links, broken
connections.

`cluster.on_event` calls a function after each step of a node, to check invariants.
`cluster.daemon(1)` has the live parts of node 1. MQD_TESTING_LOG=INFO writes the log lines of the
nodes, with virtual times; without it, an exception has the last lines.
"""

from mqd.testing.cluster import Cluster
from mqd.testing.cluster_network import ClusterNetwork
from mqd.testing.disk import MemoryDisk
from mqd.testing.node import SimulatedNode
from mqd.testing.world import World, current_world, run, simulated

__all__ = [
    "Cluster",
    "ClusterNetwork",
    "MemoryDisk",
    "SimulatedNode",
    "World",
    "current_world",
    "run",
    "simulated",
]
