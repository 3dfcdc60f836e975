"""An archive as a Delta table, written through delta-rs: no jar, one Delta commit a micro-batch.

Tasks write Parquet files into the table's folders under unique names; they are invisible until the
driver adds them to Delta's log. The same Delta commit carries the app transaction (query id, batch
id), and one with a digest of the offset ranges. So a re-run of a micro-batch finds it and drops its
own files. A micro-batch becomes visible as a whole.

Ranges without visible records are in the metadata of the commit. Delta's log cleanup removes old
commits, so after each commit they become marks in `_mqd/empty`, as in an archive of plain Parquet.
A crash between the two is repaired from the commits when the query resumes.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_mqd.pipelines.archive_commit import disk_errors, joined, overlap
from pyspark_mqd.pipelines.archive_layout import (
    ArchivedFile,
    ArchivedRange,
    covered_ranges,
    empty_path,
    empty_ranges,
    mark_empty,
    name_of,
    parse_name,
)
from pyspark_mqd.pipelines.archive_stage import NO_DATE, Staged
from pyspark_mqd.pipelines.batch_turns import (
    check_turn,
    digest_of,
    ranges_app,
    refuse_other_ranges,
)
from pyspark_mqd.pipelines.cli import Failure

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

PARTITION_BY = ["topic", "date"]
EMPTY_RANGES = "mqd.empty"
RIGHT_CHECKPOINT = (
    "Use the newest checkpoint of the query that wrote this table, or a new checkpoint with"
    " --starting-offsets from-archive."
)
INSTALL = "Delta tables need the package 'deltalake'. Install it: pip install 'mqd[delta]'"


class DeltaArchive:
    """The commits of one query into one Delta table."""

    def __init__(self, root: Path, *, headers: bool) -> None:
        self.root = root
        self._headers = headers
        self._is_repaired = False

    def table(self) -> DeltaTable:
        """The table; it is created at the first use."""
        deltalake = require_deltalake()
        if not deltalake.DeltaTable.is_deltatable(str(self.root)):
            deltalake.DeltaTable.create(
                str(self.root),
                schema_of(headers=self._headers),
                mode="ignore",
                partition_by=PARTITION_BY,
                name="mqd archive",
            )
        table: DeltaTable = deltalake.DeltaTable(str(self.root))
        return table

    def commit(self, query: str, batch: int, staged: Sequence[Staged]) -> bool:
        """Add the files of a micro-batch; returns False where an earlier attempt did.

        Raises Failure.
        """
        with disk_errors(self.root):
            return self._commit(query, batch, staged)

    def _commit(self, query: str, batch: int, staged: Sequence[Staged]) -> bool:
        table = self.table()
        self._mark_earlier(table)
        try:
            is_repeated = self._check(table, query, batch, staged)
        except Failure:
            drop(staged)  # only here: a commit that fails later may be in Delta's log
            raise
        if is_repeated:
            drop(staged)
            return False
        self._add(table, query, batch, staged)
        mark_empty(self.root, (empty_path(file.range) for file in staged if not file.path))
        return True

    def _check(self, table: DeltaTable, query: str, batch: int, staged: Sequence[Staged]) -> bool:
        """Whether the micro-batch is committed. Raises Failure where it cannot be."""
        last = table.transaction_version(query)
        target = f"table '{self.root}'"
        is_repeated = check_turn(query, batch, last, target, RIGHT_CHECKPOINT)
        if last is None:
            self._refuse_overlap(table, staged)
        digest = digest_of(joined(file.range for file in staged))
        if is_repeated and table.transaction_version(ranges_app(query)) != digest:
            refuse_other_ranges(query, batch, target, RIGHT_CHECKPOINT)
        return is_repeated

    def _mark_earlier(self, table: DeltaTable) -> None:
        """Once: mark what the last run committed and did not mark."""
        if not self._is_repaired:
            mark_empty(self.root, map(empty_path, _committed_empty(table)))
            self._is_repaired = True

    def _add(self, table: DeltaTable, query: str, batch: int, staged: Sequence[Staged]) -> None:
        deltalake = require_deltalake()
        from deltalake.transaction import AddAction, RemoveAction

        moment_ms = int(time.time() * 1_000)
        actions: list[AddAction | RemoveAction] = []
        empty = []
        for file in staged:
            if not file.path:
                empty.append(file.range)
                continue
            date = None if file.date == NO_DATE else file.date
            actions.append(
                AddAction(
                    os.path.relpath(file.path, self.root),
                    file.size,
                    {"topic": file.topic, "date": date},
                    moment_ms,
                    True,
                    file.stats,
                )
            )
        properties = deltalake.CommitProperties(
            custom_metadata={EMPTY_RANGES: json.dumps(empty)} if empty else None,
            app_transactions=[
                deltalake.Transaction(query, batch, moment_ms),
                deltalake.Transaction(
                    ranges_app(query), digest_of(joined(file.range for file in staged)), moment_ms
                ),
            ],
        )
        table.create_write_transaction(
            actions, "append", table.schema(), PARTITION_BY, commit_properties=properties
        )

    def _refuse_overlap(self, table: DeltaTable, staged: Sequence[Staged]) -> None:
        found = overlap(staged, covered_ranges(covered_by(table, self.root)))
        if found is not None:
            raise Failure(
                f"The table '{self.root}' already has offsets of '{name_of(found)}', and this"
                " checkpoint is new: its records would be archived twice.",
                remedy=RIGHT_CHECKPOINT,
            )


def drop(staged: Iterable[Staged]) -> None:
    """Remove the files of an attempt that is not committed."""
    for file in staged:
        if file.path:
            Path(file.path).unlink(missing_ok=True)


def require_deltalake() -> Any:
    """The package `deltalake`; a Failure where it is missing."""
    try:
        import deltalake
    except ImportError:
        raise Failure(f"{INSTALL}.") from None
    return deltalake


def files_of(table: DeltaTable) -> list[ArchivedFile]:
    """The table's files and the offset ranges in their names.

    Raises Failure for a file without a range: what it covers is unknown.
    """
    files = []
    for uri in table.file_uris():
        path = Path(uri)
        covered = parse_name(path.parent.parent.name.removeprefix("topic="), path.name)
        if covered is None:
            raise Failure(
                f"The table '{table.table_uri}' has the file '{path.name}', which `mqd-spark "
                "archive`"
                " did not write: its offset range is unknown. OPTIMIZE and other writers make such"
                " files.",
                remedy="Restore the version of the table before that, and optimize a copy instead.",
            )
        files.append(ArchivedFile(path, path.parent.name.removeprefix("date="), covered))
    return files


def covered_by(table: DeltaTable, root: Path) -> list[ArchivedFile]:
    """Every range that the table covers: its files, and ranges without visible records."""
    marked = list(empty_ranges(root))
    known = {each.range for each in marked}
    # A commit of a query that runs, or that crashed, may not be marked yet.
    late = [each for each in _committed_empty(table) if each not in known]
    return [*files_of(table), *marked, *(ArchivedFile(Path(), "", each) for each in late)]


def _committed_empty(table: DeltaTable) -> list[ArchivedRange]:
    """The ranges without visible records in the commits that Delta's log still has."""
    found = []
    for commit in table.history():
        found += [ArchivedRange(*each) for each in json.loads(commit.get(EMPTY_RANGES) or "[]")]
    return found


def schema_of(*, headers: bool) -> pa.Schema:
    """The columns of the table: those of the files, then those of the folders."""
    import pyarrow as pa

    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    return pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", "UTC")),
            ("timestampType", pa.int32()),
            *([("headers", pa.list_(header))] if headers else []),
            ("topic", pa.string()),
            ("date", pa.date32()),
        ]
    )
