"""The part of an archive that runs on the driver: staged files become visible, exactly once.

A micro-batch is committed by its decision: a small file that is replaced atomically, with the batch
id and every rename. Before the decision nothing is visible. After it the renames are repeated until
all are done, by this driver or the next one, and the files of any later attempt are dropped.
So a crash at any point neither loses nor doubles a record, whatever a re-run reads.

Two things stop the query with a remedy: a checkpoint that does not belong to the archive, and a
new query whose first offsets are archived already.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark_mqd.pipelines.archive_layout import (
    OWN,
    STAGING,
    ArchivedRange,
    covered_ranges,
    data_path,
    empty_path,
    listing,
    mark_empty,
    name_of,
    sync_folder,
)
from pyspark_mqd.pipelines.archive_stage import Staged
from pyspark_mqd.pipelines.cli import Failure


@dataclass(frozen=True, slots=True)
class Decision:
    """What a micro-batch is: the renames (from, to), and marks of empty ranges; paths below root."""

    batch: int
    renames: tuple[tuple[str, str], ...]
    empty: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Decision:
        """The inverse of `text`."""
        raw: dict[str, Any] = json.loads(text)
        renames = tuple((source, target) for source, target in raw["renames"])
        return cls(raw["batch"], renames, tuple(raw["empty"]))

    def text(self) -> str:
        return json.dumps(asdict(self))


def decide(batch: int, staged: Iterable[Staged], root: Path) -> Decision:
    """The decision for the files that the tasks have staged."""
    renames, empty = [], []
    for file in staged:
        if file.path:
            source = Path(file.path).relative_to(root).as_posix()
            renames.append((source, data_path(file.range, file.date)))
        else:
            empty.append(empty_path(file.range))
    return Decision(batch, tuple(sorted(renames)), tuple(sorted(empty)))


def check_turn(query: str, batch: int, last: Decision | None, root: Path) -> bool:
    """Whether `batch` was committed before. Raises Failure where it does not follow `last`."""
    before = -1 if last is None else last.batch
    if batch == before:
        return True
    if batch == before + 1:
        return False
    found = "no micro-batch" if last is None else f"micro-batch {before} as the last one"
    raise Failure(
        f"The archive '{root}' has {found} of query '{query}', and the checkpoint resumes with"
        f" micro-batch {batch}. The checkpoint and the archive do not belong together.",
        remedy="Use the checkpoint that wrote this archive, or a new checkpoint with"
        " --starting-offsets from-archive.",
    )


def overlap(
    staged: Iterable[Staged], covered: dict[tuple[str, int], list[tuple[int, int]]]
) -> ArchivedRange | None:
    """The first staged range that is archived already, in part or whole."""
    for file in staged:
        for start, end in covered.get((file.topic, file.partition), ()):
            if file.start < end and start < file.end:
                return file.range
    return None


class Archive:
    """The commits of one query into one archive on a file system with atomic renames."""

    def __init__(self, root: Path, tag: str) -> None:
        """`tag` names the checkpoint; staged files are in its folder."""
        self.root = root
        self.staging = root / STAGING / tag

    def commit(self, query: str, batch: int, staged: Sequence[Staged]) -> bool:
        """Make a micro-batch visible; returns False where an earlier attempt did."""
        path = self.root / OWN / f"decision-{query}.json"
        last = Decision.parse(path.read_text()) if path.exists() else None
        is_repeated = check_turn(query, batch, last, self.root)
        if last is not None:
            self.carry_out(last)
        if not is_repeated:
            if last is None:
                self._refuse_overlap(staged)
            decision = decide(batch, staged, self.root)
            write_atomically(path, decision.text())
            self.carry_out(decision)
        shutil.rmtree(self.staging, ignore_errors=True)
        return not is_repeated

    def carry_out(self, decision: Decision) -> None:
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
                remedy="Use the checkpoint that wrote this archive, or a new checkpoint with"
                " --starting-offsets from-archive.",
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
