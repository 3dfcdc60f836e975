"""The streaming reader of the format `mqd`, wrapped: pipelines change one method of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow


def source_of(options: Mapping[str, str]) -> Any:
    """The format `mqd` with these options."""
    from pyspark_mqd import DefaultSource

    return DefaultSource(CaseInsensitiveDict(options))


class WrappedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets, limits, triggers and recovery of the reader that it wraps."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return dict(self._reader.initialOffset())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        return dict(self._reader.latestOffset(start, limit))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit: ReadLimit = self._reader.getDefaultReadLimit()
        return limit

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        latest: dict[str, Any] | None = self._reader.reportLatestOffset()
        return latest

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._reader.prepareForTriggerAvailableNow()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        planned: Sequence[InputPartition] = self._reader.partitions(start, end)
        return planned

    def commit(self, end: dict[str, Any]) -> None:
        self._reader.commit(end)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return iter(self._reader.read(partition))
