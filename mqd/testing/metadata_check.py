"""The last check of a run: the metadata must have every acknowledged administrative change."""

from __future__ import annotations

from mqd.testing.faults.administration import Administration
from mqd.testing.faults.faulted_cluster import FaultedCluster


def check_metadata(cluster: FaultedCluster, administration: Administration) -> list[str]:
    """Violations: acknowledged topics that are missing, deleted ones that exist, and logs that the
    metadata does not assign to their node.
    """
    violations: list[str] = []
    image = cluster.newest_image()
    for name, count in sorted(administration.created.items()):
        topic = image.topics.get(name)
        if topic is None or len(topic.partitions) < count:
            violations.append(
                f"I10: topic {name} was acknowledged with {count} partitions; now {topic}"
            )
    for name in sorted(administration.deleted & set(image.topics)):
        violations.append(f"I10: the deletion of {name} was acknowledged, but it exists")
    for node_id in cluster.ids:
        daemon = cluster.daemon(node_id)
        assert daemon is not None
        for place, log in sorted(daemon.logs.logs.items()):
            topic = image.topics.get(place.topic)
            if (
                topic is None
                or topic.topic_id != log.topic_id
                or node_id not in topic.partitions[place.partition].replicas
            ):
                violations.append(
                    f"I18: node {node_id} keeps the log of {place}, which the metadata "
                    "does not assign to it"
                )
    return violations
