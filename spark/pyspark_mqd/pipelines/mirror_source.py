"""The data source `mqd_mirror`: the format `mqd`, which prepares the target before each
micro-batch.

Spark calls `latestOffset` once a micro-batch, in one process, before any task runs. Topics and
partitions that are new there are made in the target cluster first. A micro-batch that runs again
after a restart does not call it: the command prepares the target at its start, too.

Tasks import this module on workers, which need not have what the command lines need (click).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from pyspark_mqd.errors import OptionError
from pyspark_mqd.offsets import StreamOffset
from pyspark_mqd.pipelines.wrapped_reader import WrappedReader, source_of

if TYPE_CHECKING:
    from pyspark_mqd.pipelines.mirror_target import MirrorConfiguration

NAME = "mqd_mirror"
OWN_OPTION = "mirror.configuration"


def options_of(configuration: MirrorConfiguration) -> dict[str, str]:
    """Options of this source: those of the format `mqd`, and the configuration as JSON."""
    return {**configuration.source, OWN_OPTION: json.dumps(asdict(configuration))}


class MirrorSource(DataSource):
    """Options: those of the format `mqd`, and `mirror.configuration`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        left = {name: value for name, value in self.options.items() if name != OWN_OPTION}
        self._source = source_of(left)

    def schema(self) -> StructType:
        found: StructType = self._source.schema()
        return found

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return MirrorReader(self._source.streamReader(schema), self.options[OWN_OPTION])


class MirrorReader(WrappedReader):
    """The reader of the format `mqd`, and what the target cluster has already.

    `configuration` is JSON.
    """

    def __init__(self, reader: Any, configuration: str) -> None:
        super().__init__(reader)
        self._configuration = configuration
        self._prepared: dict[str, int] = {}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        end = super().latestOffset(start, limit)
        counts = partition_counts_in(end)
        new = {name: count for name, count in counts.items() if count > self._prepared.get(name, 0)}
        if new:
            self._prepare(new)
            self._prepared.update(new)
        return end

    def _prepare(self, counts: Mapping[str, int]) -> None:
        from pyspark_mqd.pipelines.brokers import connected
        from pyspark_mqd.pipelines.cli import Failure
        from pyspark_mqd.pipelines.mirror_target import (
            MirrorConfiguration,
            prepare_target,
            refuse_circle,
        )

        configuration = MirrorConfiguration(**json.loads(self._configuration))
        try:
            refuse_circle(configuration, counts)
            with connected(configuration.target_settings()) as client:
                prepare_target(client, configuration, counts)
        except Failure as failure:  # the driver gets the text of the error only
            raise OptionError(f"{failure.message} {failure.remedy}") from None


def partition_counts_in(offset: Mapping[str, Any]) -> dict[str, int]:
    """How many partitions of each topic an offset has, counted to the highest one."""
    counts: dict[str, int] = {}
    for tp in StreamOffset.from_json(offset).ends:
        counts[tp.topic] = max(counts.get(tp.topic, 0), tp.partition + 1)
    return counts
