"""Injects the faults of the nemesis. At the end of each step, all processes run again."""

from __future__ import annotations

import time

from .ensemble import Ensemble
from .links import Links
from .nemesis import Fault, Step


def inject_fault(
    cluster: Ensemble, step: Step, victims: list[int], links: Links | None = None
) -> None:
    """Inject the fault and end it. Does not wait until the restarted nodes serve.

    Raises NodeFailed if a node ended by itself.
    """
    nodes = [cluster.nodes[node_id] for node_id in victims]
    match step.fault:
        case Fault.PAUSE:
            for node in nodes:
                node.pause()
            time.sleep(step.down_s)
            for node in nodes:
                node.resume()
        case Fault.CUT:
            assert links is not None
            links.isolate(victims)
            time.sleep(step.down_s)
            links.heal()
        case Fault.RESTART:
            for node in nodes:
                node.terminate()
            for node in nodes:
                node.wait_stopped()
                _mark_down(node.node_id, links)
            _launch(cluster, victims, links)
        case Fault.KILL | Fault.KILL_IN_RECOVERY:
            for node in nodes:
                node.kill()
                _mark_down(node.node_id, links)
            time.sleep(step.down_s)
            if step.fault is Fault.KILL_IN_RECOVERY:
                _launch(cluster, victims, links)
                time.sleep(step.again_s)
                for node in nodes:
                    node.kill()
                    _mark_down(node.node_id, links)
            _launch(cluster, victims, links)
    for node in cluster.nodes.values():
        node.check_alive()


def _mark_down(node_id: int, links: Links | None) -> None:
    if links is not None:
        links.down(node_id)


def _launch(cluster: Ensemble, victims: list[int], links: Links | None) -> None:
    for node_id in victims:
        cluster.nodes[node_id].launch()
        if links is not None:
            links.up(node_id)
    for node_id in victims:
        if len(cluster.running) == len(cluster.nodes):
            cluster.nodes[node_id].check_alive()
