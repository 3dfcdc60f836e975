"""A real cluster inside one process: the shipping daemon on virtual time, a network and disks in memory, and one seed."""

from mqd.testing.cluster import Cluster, SimulatedNode
from mqd.testing.world import World, current_world, run, simulated

__all__ = ["Cluster", "SimulatedNode", "World", "current_world", "run", "simulated"]
