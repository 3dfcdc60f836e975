"""The target of a mirror: its configuration, the names of its topics, and their creation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark_mqd.options import compile_pattern
from pyspark_mqd.pipelines.cli import Failure, Settings

if TYPE_CHECKING:
    from mqd.client.sync import BlockingClient


@dataclass(frozen=True, slots=True)
class MirrorConfiguration:
    """What is copied, and how topics are named in the target cluster."""

    source: Mapping[str, str]
    target: Mapping[str, str]
    checkpoint: str
    names: Mapping[str, str] = field(default_factory=dict)
    """Source topic -> target topic; other topics get the prefix."""
    prefix: str = ""
    same_partitions: bool = True
    pattern: str | None = None
    """The expression that chooses topics; None where they are named."""
    same_cluster: bool = False

    def target_of(self, topic: str) -> str:
        """The name of a topic in the target cluster."""
        return self.names.get(topic, self.prefix + topic)

    def target_settings(self) -> Settings:
        """How to connect to the target cluster."""
        client = {name: each for name, each in self.target.items() if name.startswith("kafka.")}
        return Settings(client.pop("kafka.bootstrap.servers"), client=client)


def refuse_circle(configuration: MirrorConfiguration, topics: Iterable[str]) -> None:
    """Raises Failure where the query would read what it writes."""
    if not configuration.same_cluster:
        return
    pattern = configuration.pattern
    expression = None if pattern is None else compile_pattern(pattern)
    for topic in topics:
        target = configuration.target_of(topic)
        if target in set(topics) or (expression is not None and expression.search(target)):
            raise Failure(
                f"Topic '{target}' would be read and written by this mirror: source and target"
                " are the same cluster.",
                remedy="Name the target's topics differently: --prefix copy. or --map a=b.",
            )


def prepare_target(
    client: BlockingClient, configuration: MirrorConfiguration, counts: Mapping[str, int]
) -> list[str]:
    """Create missing topics, and add missing partitions unless keys choose them.

    `counts`: source topic -> its partitions. Returns the topics that were created or got
    partitions.
    """
    from pyspark_mqd.pipelines.topics import add_missing_partitions, create_missing

    wanted: dict[str, int] = {}
    for topic, count in counts.items():
        target = configuration.target_of(topic)
        wanted[target] = max(count, wanted.get(target, 0))
    changed = create_missing(client, wanted)
    if configuration.same_partitions:
        changed += [each for each in add_missing_partitions(client, wanted) if each not in changed]
    return changed
