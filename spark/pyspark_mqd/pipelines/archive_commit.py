"""The part of an archive that runs on the driver: staged files become visible, exactly once.

A micro-batch is committed by its decision: a small file that is replaced atomically, with the batch
id and every rename. Before the decision nothing is visible. After it, this driver or the next one
repeats the renames until all are done. The files of any later attempt are dropped. So a crash at
any point neither loses nor doubles a record, whatever a re-run reads.

Some faults stop the query with a remedy: a checkpoint of another archive, an old copy of the
checkpoint, a damaged decision. So does a new query with archived first offsets.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark_mqd.pipelines.archive_layout import (
    OWN,
    STAGING,
    ArchivedFile,
    ArchivedRange,
    covered_ranges,
    data_path,
    empty_path,
    listing,
    mark_empty,
    name_of,
    parse_data_path,
    parse_empty_path,
    staging_folder,
    sync_folder,
)
from pyspark_mqd.pipelines.archive_stage import Staged
from pyspark_mqd.pipelines.batch_turns import Ranges, check_turn, refuse_other_ranges
from pyspark_mqd.pipelines.cli import Failure

RIGHT_CHECKPOINT = (
    "Use the newest checkpoint of the query that wrote this archive, or a new checkpoint with"
    " --starting-offsets from-archive."
)
_STAGED_NAME = re.compile(r"[0-9A-Za-z]+\.parquet")


@dataclass(frozen=True, slots=True)
class ArchiveDecision:
    """What a micro-batch is: the renames (from, to), and marks of empty ranges; paths below
    root.
    """

    batch: int
    renames: tuple[tuple[str, str], ...]
    empty: tuple[str, ...]

    @classmethod
    def parse(cls, text: str, query: str) -> ArchiveDecision:
        """The inverse of `text`. Raises ValueError for what `decide` does not write.

        Sources are in the staging folder of `query`, targets are files of the archive.
        """
        try:
            raw: dict[str, Any] = json.loads(text)
            batch, empty = raw["batch"], tuple(raw["empty"])
            renames = tuple((source, target) for source, target in raw["renames"])
            decision = cls(batch, renames, empty)
            if type(batch) is not int or batch < 0:
                raise ValueError(f"the batch id is {batch!r}")
            for source, _ in renames:
                folder, _, name = source.rpartition("/")
                if folder != f"{STAGING}/{query}" or _STAGED_NAME.fullmatch(name) is None:
                    raise ValueError(f"{source!r} is not a staged file of the query")
            decision.ranges()
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from None
        return decision

    def text(self) -> str:
        return json.dumps(asdict(self))

    def ranges(self) -> Ranges:
        """The offset ranges of the micro-batch. Raises ValueError for a path that has none."""
        found = [(path, parse_data_path(path)) for _, path in self.renames]
        found += [(path, parse_empty_path(path)) for path in self.empty]
        for path, covered in found:
            if covered is None:
                raise ValueError(f"{path!r} is not a file of an archive")
        return joined(covered for _, covered in found if covered is not None)


def decide(batch: int, staged: Iterable[Staged], root: Path) -> ArchiveDecision:
    """The decision for the files that the tasks have staged."""
    renames, empty = [], []
    parts: dict[tuple[ArchivedRange, str], int] = {}
    for file in staged:
        if file.path:
            part = parts[file.range, file.date] = parts.get((file.range, file.date), -1) + 1
            source = Path(file.path).relative_to(root).as_posix()
            renames.append((source, data_path(file.range, file.date, part)))
        else:
            empty.append(empty_path(file.range))
    return ArchiveDecision(batch, tuple(sorted(renames)), tuple(sorted(empty)))


def joined(ranges: Iterable[ArchivedRange]) -> Ranges:
    """The ranges of a micro-batch. Tasks may split them in other ways when it runs again."""
    return covered_ranges(ArchivedFile(Path(), "", each) for each in ranges)


def overlap(
    staged: Iterable[Staged], covered: dict[tuple[str, int], list[tuple[int, int]]]
) -> ArchivedRange | None:
    """The first staged range that is archived already, in part or whole."""
    for file in staged:
        for start, end in covered.get((file.topic, file.partition), ()):
            if file.start < end and start < file.end:
                return file.range
    return None


@contextmanager
def disk_errors(root: Path) -> Iterator[None]:
    """Raises Failure for an error of the file system, such as a full disk."""
    try:
        yield
    except OSError as error:
        raise Failure(
            f"Cannot write to the archive '{root}': {error.strerror or error}.",
            remedy="Free space or mend the folder, and start again: nothing is lost.",
        ) from error


class Archive:
    """The commits of queries into one archive on a file system with atomic renames."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def commit(self, query: str, batch: int, staged: Sequence[Staged]) -> bool:
        """Make a micro-batch visible; returns False where an earlier attempt did.

        Raises Failure.
        """
        with disk_errors(self.root):
            return self._commit(query, batch, staged)

    def _commit(self, query: str, batch: int, staged: Sequence[Staged]) -> bool:
        path = self.root / OWN / f"decision-{query}.json"
        last = self._read(path, query)
        target = f"archive '{self.root}'"
        before = None if last is None else last.batch
        is_repeated = check_turn(query, batch, before, target, RIGHT_CHECKPOINT)
        if last is not None:
            if is_repeated and last.ranges() != joined(file.range for file in staged):
                refuse_other_ranges(query, batch, target, RIGHT_CHECKPOINT)
            self.carry_out(last)
        if not is_repeated:
            if last is None:
                self._refuse_overlap(staged)
            self._require(staged)
            decision = decide(batch, staged, self.root)
            write_atomically(path, decision.text())
            self.carry_out(decision)
        shutil.rmtree(staging_folder(self.root, query), ignore_errors=True)
        return not is_repeated

    def _read(self, path: Path, query: str) -> ArchiveDecision | None:
        if not path.exists():
            return None
        try:
            return ArchiveDecision.parse(path.read_text(), query)
        except ValueError as error:
            raise Failure(
                f"The file '{path}' with the last micro-batch of query '{query}' is damaged:"
                f" {error}. Nothing is written.",
                remedy="Restore the file. Without it, some files of the last micro-batch may still"
                " be in the staging folder: archive into a new folder with a new checkpoint.",
            ) from None

    def _require(self, staged: Iterable[Staged]) -> None:
        for file in staged:
            if file.path and not os.path.exists(file.path):
                raise Failure(
                    f"The staged file '{file.path}' of '{name_of(file.range)}' is missing. The"
                    " driver and the workers do not share the folder, or another program removed"
                    " the file.",
                    remedy="Mount the same folder everywhere, and start again: nothing is lost.",
                )

    def carry_out(self, decision: ArchiveDecision) -> None:
        """Rename what is not renamed yet. Repeats are harmless."""
        folders: set[Path] = set()
        for source, target in decision.renames:
            staged, final = self.root / source, self.root / target
            if staged.exists():
                final.parent.mkdir(parents=True, exist_ok=True)
                os.replace(staged, final)
                folders.add(final.parent)
            elif not final.exists():
                raise Failure(
                    f"The archive '{self.root}' lost the file '{target}' of a committed"
                    f" micro-batch ({decision.batch}): it is neither staged nor archived.",
                    remedy="Restore the file, or archive its offsets again into a new folder.",
                )
        for folder in folders:
            sync_folder(folder)
        mark_empty(self.root, decision.empty)

    def _refuse_overlap(self, staged: Sequence[Staged]) -> None:
        topics = {file.topic for file in staged}
        found = overlap(staged, covered_ranges(listing(self.root, topics)))
        if found is not None:
            raise Failure(
                f"The archive '{self.root}' already has offsets of '{name_of(found)}', and this"
                " checkpoint is new: its records would be archived twice.",
                remedy=RIGHT_CHECKPOINT,
            )


def write_atomically(path: Path, text: str) -> None:
    """Replace a small file so that a reader, and a crash, sees the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".new")
    with open(scratch, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(scratch, path)
    sync_folder(path.parent)
