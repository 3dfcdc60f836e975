"""What follows a streaming query from outside of it: commits to the group, and the lag.

    spark.streams.addListener(MqdListener())

A source with option `commitOffsets` writes its group and cluster into its offsets, so the listener
needs no settings. It commits after each micro-batch, also after the last one, and then
`mqctl group lag` shows the query. The lag is Spark's: offsets behind latest, by partition.
The listener lives in the driver's Python process. A failure to commit never stops a query.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from mqd.client.errors import ClientError
from mqd.errors import MqError

from .connection import PREFIX, Connection, client_for, client_name, connection_of, lowered
from .errors import ConnectorError, OptionError
from .offsets import CommitTarget, Offsets, StreamOffset

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

logger = logging.getLogger("pyspark_mqd")

QUERIES_MAX = 1_000
"""Queries whose lag is kept; the oldest is forgotten first."""


@dataclass(frozen=True, slots=True)
class Lag:
    """Offsets behind latest over the partitions of a source: Spark's names and meaning."""

    min_offsets_behind_latest: int
    max_offsets_behind_latest: int
    avg_offsets_behind_latest: float

    def metrics(self) -> dict[str, str]:
        """As Spark's Kafka source reports it in `progress.sources[].metrics`."""
        return {
            "minOffsetsBehindLatest": str(self.min_offsets_behind_latest),
            "maxOffsetsBehindLatest": str(self.max_offsets_behind_latest),
            "avgOffsetsBehindLatest": str(self.avg_offsets_behind_latest),
        }


def lag_between(end: Offsets, latest: Offsets) -> Lag | None:
    """The lag of a micro-batch that ended at `end`; None without partitions."""
    behind = [max(place - end.get(tp, 0), 0) for tp, place in latest.items()]
    if not behind:
        return None
    return Lag(min(behind), max(behind), sum(behind) / len(behind))


def offset_in(text: str | None) -> StreamOffset | None:
    """The offset of a source in a progress report; None where it is not one of Kafka's shape."""
    try:
        value = json.loads(text or "")
        return StreamOffset.from_json(value) if isinstance(value, dict) else None
    except (ValueError, OptionError):
        return None


def lags_of(progress: StreamingQueryProgress) -> list[Lag | None]:
    """The lag of each source of a query, in their order; None for sources of other formats."""
    lags = []
    for source in progress.sources:
        end, latest = offset_in(source.endOffset), offset_in(source.latestOffset)
        lags.append(None if end is None or latest is None else lag_between(end.ends, latest.ends))
    return lags


def commits_of(
    progress: StreamingQueryProgress, default: CommitTarget | None = None
) -> list[tuple[CommitTarget, Offsets]]:
    """What to commit after a micro-batch: the group of each source and its end offsets."""
    found = []
    for source in progress.sources:
        end = offset_in(source.endOffset)
        if end is None or not end.ends:
            continue
        target = end.commit or default
        if target is not None:
            found.append((target, end.ends))
    return found


def commit_offsets(connection: Connection, group_id: str, offsets: Offsets) -> str | None:
    """Commit to a group without members; returns why it failed."""
    try:
        outcomes = client_for(connection).admin.alter_group_offsets(group_id, offsets)
    except ConnectorError as error:
        return str(error)
    except MqError as error:
        return _reason(error)
    failures = [outcome for outcome in outcomes.values() if outcome is not None]
    return _reason(failures[0]) if failures else None


def _reason(error: MqError) -> str:
    remedy = error.remedy if isinstance(error, ClientError) else ""
    return f"{error.message}. {remedy}" if remedy else error.message


class MqdListener(StreamingQueryListener):
    """Commits offsets after each micro-batch and keeps the lag of each query.

    `options` are source options for queries whose offsets name no group: those with
    `offsetMetadata=false`, and those of format `kafka`. They need `kafka.bootstrap.servers` and
    `kafka.group.id`. `on_lag` is called with the query's id and the lag of each source.
    """

    def __init__(
        self,
        options: Mapping[str, str] | None = None,
        *,
        on_lag: Callable[[str, list[Lag | None]], None] | None = None,
    ) -> None:
        super().__init__()
        self.lags: dict[str, list[Lag | None]] = {}
        """Query id -> the lag of each source after its last micro-batch."""
        self.failures: dict[str, str] = {}
        """Group -> why its last commit failed."""
        self._on_lag = on_lag
        own = lowered(options or {})
        self._connection = connection_of(own) if own else None
        self._default: CommitTarget | None = None
        if self._connection is not None:
            group_id = client_name(own, "group.id")
            if not group_id:
                raise OptionError(
                    f"The listener needs option '{PREFIX}group.id': the group to commit to. "
                    "Set it, or create the listener without options."
                )
            self._default = CommitTarget(group_id, self._connection.bootstrap)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Nothing to do."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        try:
            self._take_in(event.progress)
        except Exception:  # Spark would log it in the JVM only
            logger.exception("The listener of format 'mqd' failed")

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Nothing to do: everything is committed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Nothing to do: the last lag stays available after the query's end."""

    def _take_in(self, progress: StreamingQueryProgress) -> None:
        query = str(progress.id)
        lags = self.lags[query] = lags_of(progress)
        while len(self.lags) > QUERIES_MAX:
            del self.lags[next(iter(self.lags))]
        for lag in filter(None, lags):
            logger.info("Query %s: %s", progress.name or query, _shown(lag.metrics()))
        if self._on_lag is not None:
            self._on_lag(query, lags)
        for target, offsets in commits_of(progress, self._default):
            reason = commit_offsets(self._connection_to(target), target.group_id, offsets)
            if reason is None:
                self.failures.pop(target.group_id, None)
            elif self.failures.get(target.group_id) != reason:
                self.failures[target.group_id] = reason
                logger.warning(
                    "Offsets are not committed to group '%s': %s", target.group_id, reason
                )

    def _connection_to(self, target: CommitTarget) -> Connection:
        known = self._connection
        if known is not None and known.bootstrap == target.bootstrap:
            return known
        return Connection(target.bootstrap)


def _shown(metrics: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in metrics.items())
