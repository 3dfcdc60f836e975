"""The checkpoint of a streaming query: its offset log and its commit log, read and changed.

`offsets/N` is written before batch N runs and holds where it ends; `commits/N` is written when the
batch is done. So batch N covers `[offsets/N-1, offsets/N)`. A batch with `offsets/N` and without
`commits/N` is planned: Spark runs exactly that range again, also if it has done a part of it
before.

Therefore only one change is safe, and only while nothing is planned: to replace the newest
`offsets/N`, whose commit exists. Spark never runs that batch again, and starts batch N+1 there.
Batch ids, state and the markers of an exactly-once sink stay as they are. A planned batch is not
changed: parts of it may be in the sink, under the very id that a different range would get.

The first part is pure. The second reads and writes folders that this machine can open as files.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Set
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from mqd.types import TopicPartition
from pyspark_mqd.errors import OptionError
from pyspark_mqd.offsets import Offsets, StreamOffset, TopicState
from pyspark_mqd.pipelines.cli import Failure

OFFSET_LOG, COMMIT_LOG, BACKUPS = "offsets", "commits", "mqd-offsets-backup"
VERSION = "v1"
NO_OFFSETS = "-"
"""What the log holds for a source that had no offset yet."""


LOOKING = frozenset({b"lag", b"offsets", b"doctor", b"txn"})
"""Commands of `mqd-spark` that do not run the query of the checkpoint."""


class CheckpointError(Failure):
    """A checkpoint that cannot be used as requested."""


@dataclass(frozen=True, slots=True)
class OffsetLogEntry:
    """One file of the offset log.

    `sources` has each source's offset as JSON text, or NO_OFFSETS.
    """

    batch: int
    metadata: str
    sources: tuple[str, ...]

    @property
    def planned_ms(self) -> int | None:
        """When the batch was planned, by the driver's clock."""
        found = json.loads(self.metadata).get("batchTimestampMs") if self.metadata else None
        return found if isinstance(found, int) and found > 0 else None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The content of a checkpoint. `entries` are in order of their batches, and never empty.

    `committed` is the newest batch that is done, -1 before the first."""

    query_id: str
    entries: tuple[OffsetLogEntry, ...]
    committed: int
    stateful: bool = False

    @property
    def latest(self) -> OffsetLogEntry:
        return self.entries[-1]

    @property
    def planned(self) -> OffsetLogEntry | None:
        """The batch that is not done: the next start of the query runs its exact range again."""
        return self.latest if self.latest.batch > self.committed else None

    @property
    def done(self) -> OffsetLogEntry | None:
        """The newest batch that is done; None if the log no longer (or not yet) has one."""
        return next((each for each in reversed(self.entries) if each.batch <= self.committed), None)

    def source_of(self, index: int | None) -> int:
        """The source to look at: the only one, or the requested one. Raises CheckpointError."""
        sources = self.latest.sources
        usable = [number for number, text in enumerate(sources) if _has_topics(text)]
        if index is None and len(usable) == 1:
            return usable[0]
        if index is not None and index in usable:
            return index
        if not usable:
            raise CheckpointError(
                "No source of the query has offsets of topics: it reads neither format 'mqd' nor"
                " format 'kafka', or no topic existed yet."
            )
        which = ", ".join(map(str, usable))
        raise CheckpointError(
            f"The sources {which} of the query have offsets of topics"
            + (", and --source names none of them." if index is not None else "."),
            remedy="Name one of them with --source.",
        )


# -- the files as text


def parse_entry(batch: int, text: str) -> OffsetLogEntry:
    """One file of the offset log. Raises CheckpointError."""
    lines = text.split("\n")
    if lines[0] != VERSION:
        raise CheckpointError(
            f"'{OFFSET_LOG}/{batch}' has version {lines[0]!r} of Spark's offset log, and only"
            f" {VERSION!r} is known: a newer Spark wrote it, or it is damaged.",
            remedy="Use the mqd-spark that belongs to the Spark of the query.",
        )
    if len(lines) < 3:
        raise _damaged(batch, "it is cut short and names no source")
    for number, line in enumerate(lines[1:], 2):
        # Another source may write its offsets in other forms than JSON.
        is_known = line.startswith("{") or (not line if number == 2 else bool(line))
        if not is_known or not _is_whole(line):
            raise _damaged(batch, f"line {number} is not JSON")
    return OffsetLogEntry(batch, lines[1], tuple(lines[2:]))


def _is_whole(line: str) -> bool:
    if line.startswith("{"):
        try:
            json.loads(line)
        except (ValueError, RecursionError):
            return False
    return True


def _damaged(batch: int, why: str) -> CheckpointError:
    return CheckpointError(
        f"The file '{OFFSET_LOG}/{batch}' of the checkpoint is damaged: {why}.",
        remedy="Restore the checkpoint from a copy, or start the query with a new one.",
    )


def render_entry(entry: OffsetLogEntry) -> str:
    """The file for an entry, as Spark writes it."""
    return "\n".join([VERSION, entry.metadata, *entry.sources])


def parse_source(text: str) -> StreamOffset:
    """A source's offset, of format `mqd` or `kafka`. Raises CheckpointError."""
    if text == NO_OFFSETS:
        return StreamOffset({})
    try:
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError(text)
        return StreamOffset.from_json(found)
    except (ValueError, OptionError):
        raise CheckpointError(
            f'The checkpoint holds no offsets of topics, such as {{"orders":{{"0":5}}}}, but'
            f" {text[:200]}"
        ) from None


def _has_topics(text: str) -> bool:
    try:
        return bool(parse_source(text).ends)
    except CheckpointError:
        return False


# -- the change


def plan_reset(checkpoint: Checkpoint, source: int, target: Offsets) -> OffsetLogEntry:
    """The entry that makes the next batch of `source` start at `target`. Raises CheckpointError.

    Partitions that `target` does not name stay where they are. Topic ids stay, so that a topic that
    was created again is still noticed. Leader epochs of moved partitions are removed, because they
    belong to the old offsets.
    """
    planned = checkpoint.planned
    if planned is not None:
        raise CheckpointError(
            f"Batch {planned.batch} is planned and not done: its rows may be in the sink in part,"
            " and Spark runs exactly its range again.",
            remedy="Start the query once with the trigger availableNow, so that the batch"
            " completes, then reset. Or start a new query with a new checkpoint and the offsets"
            " of `mqd-spark offsets show --starting-offsets`.",
        )
    current = parse_source(checkpoint.latest.sources[source])
    unknown = sorted(set(target) - set(current.ends))
    if unknown:
        raise CheckpointError(
            f"The query does not read '{unknown[0]}': the partition is not in"
            f" '{OFFSET_LOG}/{checkpoint.latest.batch}'.",
            remedy="Name partitions that `mqd-spark offsets show` lists.",
        )
    for tp, offset in sorted(target.items()):
        if offset < 0:
            raise CheckpointError(f"{offset} is not an offset of '{tp}'.")
    moved = {tp for tp, offset in target.items() if offset != current.ends[tp]}
    topics = {name: _without(state, name, moved) for name, state in current.topics.items()}
    changed = list(checkpoint.latest.sources)
    after = StreamOffset({**current.ends, **target}, topics, current.commit)
    changed[source] = json.dumps(after.to_json(), separators=(",", ":"))
    return replace(checkpoint.latest, sources=tuple(changed))


def _without(state: TopicState, topic: str, moved: Set[TopicPartition]) -> TopicState:
    """What is known of a topic when the offsets of these partitions have moved."""
    gone = {tp.partition for tp in moved if tp.topic == topic}
    return TopicState(
        state.topic_id,
        {index: epoch for index, epoch in state.epochs.items() if index not in gone},
        {index: begin for index, begin in state.begins.items() if index not in gone},
    )


def out_of_range(target: Offsets, starts: Offsets, ends: Offsets) -> list[TopicPartition]:
    """Partitions whose target lies outside of the log."""
    return [
        tp
        for tp in sorted(target)
        if tp in starts and tp in ends and not starts[tp] <= target[tp] <= ends[tp]
    ]


# -- the folder


def folder_of(location: str) -> Path:
    """The folder of a checkpoint location.

    Raises CheckpointError for one that is not a file path.
    """
    if location.startswith("file:"):
        return Path("/" + location.removeprefix("file:").lstrip("/"))
    if "://" in location:
        raise CheckpointError(
            f"The checkpoint '{location}' is not on a file system of this machine.",
            remedy="Mount it, or copy it to a folder and name that.",
        )
    return Path(location)


def read_checkpoint(folder: Path) -> Checkpoint:
    """The content of a checkpoint folder. Raises CheckpointError."""
    try:
        query_id = str(json.loads((folder / "metadata").read_text())["id"])
        entries = tuple(_read_entry(folder, each) for each in _numbered(folder / OFFSET_LOG))
        committed = max(_numbered(folder / COMMIT_LOG), default=-1)
    except FileNotFoundError:
        raise CheckpointError(
            f"'{folder}' is not the checkpoint of a streaming query: the file 'metadata' or the"
            f" folder '{OFFSET_LOG}' is missing.",
            remedy="Name the folder of option checkpointLocation.",
        ) from None
    except (ValueError, KeyError, TypeError):
        raise CheckpointError(f"The checkpoint '{folder}' has a damaged file 'metadata'.") from None
    if not entries:
        raise CheckpointError(
            f"The checkpoint '{folder}' has no batch yet: the query starts at its option"
            " startingOffsets.",
            remedy="Set that option instead.",
        )
    return Checkpoint(query_id, entries, committed, (folder / "state").is_dir())


def _read_entry(folder: Path, batch: int) -> OffsetLogEntry:
    try:
        return parse_entry(batch, (folder / OFFSET_LOG / str(batch)).read_text("utf-8"))
    except UnicodeDecodeError:
        raise _damaged(batch, "it is not text in UTF-8") from None


def _numbered(folder: Path) -> list[int]:
    """The batches that have a file, in order; Spark ignores other names too."""
    names = os.listdir(folder) if folder.name != COMMIT_LOG or folder.is_dir() else []
    return sorted(int(name) for name in names if name.isdigit())


def seconds_since_written(folder: Path, now_s: float) -> float:
    """How long ago the newest batch was planned or done, by the times of the files."""
    newest = 0.0
    for log in (OFFSET_LOG, COMMIT_LOG):
        with suppress(FileNotFoundError):
            for entry in os.scandir(folder / log):
                newest = max(newest, entry.stat().st_mtime)
    return max(now_s - newest, 0.0)


def processes_with(places: Set[str], proc: Path = Path("/proc")) -> list[int]:
    """Processes of this machine that have one of `places` as an argument (Linux; else none).

    Left out are this process, those that started it, and commands that only look.
    """
    wanted = {each.encode() for each in places}
    mine = _ancestors(os.getpid(), proc)
    found = []
    for entry in proc.glob("[0-9]*/cmdline"):
        with suppress(OSError):
            arguments = set(entry.read_bytes().split(b"\0"))
            values = arguments | {each.partition(b"=")[2] for each in arguments}
            number = int(entry.parent.name)
            if values & wanted and not arguments & LOOKING and number not in mine:
                found.append(number)
    return sorted(found)


def _ancestors(number: int, proc: Path) -> set[int]:
    """The process and those that started it, up to the first."""
    found: set[int] = set()
    with suppress(OSError, IndexError, ValueError):
        while number not in found:
            found.add(number)
            number = int((proc / str(number) / "stat").read_text().rpartition(")")[2].split()[1])
    return found


def write_entry(folder: Path, entry: OffsetLogEntry) -> Path:
    """Replace the file of `entry` in the offset log; returns the path of the backup.

    Hadoop keeps a checksum beside each file, which would refuse the new content. It goes first: a
    file without one is read unchecked. The new file then takes the place of the old in one step.
    """
    log = folder / OFFSET_LOG
    old = log / str(entry.batch)
    kept = folder / BACKUPS / f"{entry.batch}-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
    kept.parent.mkdir(exist_ok=True)
    shutil.copyfile(old, kept)
    written = log / f".{entry.batch}.{os.getpid()}.tmp"
    with open(written, "w") as file:
        file.write(render_entry(entry))
        file.flush()
        os.fsync(file.fileno())
    (log / f".{entry.batch}.crc").unlink(missing_ok=True)
    os.replace(written, old)
    return kept
