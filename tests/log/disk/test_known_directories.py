"""Which log directories belong to the metadata: the file, and every mismatch between logs and
metadata.
"""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from mqd.errors import StorageError
from mqd.log.disk.known_directories import (
    NAME,
    KnownDirectories,
    absolute,
    load_known_directories,
    store_known_directories,
)
from mqd.log.log_directory import LogDirectory
from mqd.protocol.files import encode_uuid
from tests.log.support import FaultyDisk

ONE, TWO = UUID(int=0xFBFF), UUID(int=2)
METADATA = Path("/data/metadata")
FILE = Path("/data") / NAME


def directory(
    path: str, directory_id: UUID | None, *, partitions: int = 0, failed: str | None = None
) -> LogDirectory:
    made = LogDirectory(Path(path))
    made.id, made.partitions, made.failed = directory_id, partitions, failed
    return made


def refusal(
    known: KnownDirectories, *directories: LogDirectory, metadata_is_new: bool = False
) -> str:
    with pytest.raises(StorageError) as refused:
        known.check(FILE, METADATA, directories, metadata_is_new=metadata_is_new)
    return str(refused.value)


def test_the_file_is_read_back_and_can_be_edited(tmp_path: Path) -> None:
    disk, file = FaultyDisk(), tmp_path / NAME
    assert load_known_directories(disk, file) == KnownDirectories()
    known = KnownDirectories(57, {ONE: "/disk one=1/lögs", TWO: "/two"})
    store_known_directories(disk, file, known)
    assert load_known_directories(disk, file) == known
    lines = file.read_text().splitlines()
    assert f"{encode_uuid(TWO)}=/two" in lines
    file.write_text("\n".join(line for line in lines if "/two" not in line))
    assert load_known_directories(disk, file).paths == {ONE: "/disk one=1/lögs"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "version=1\n",
        "version=0\nno line\n",
        "version=0\nabc=/path\n",
        "version=0\nmetadata.index=x\n",
    ],
)
def test_a_malformed_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    with pytest.raises(StorageError, match=NAME):
        load_known_directories(FaultyDisk(), tmp_path / NAME)


def test_first_starts_new_directories_and_moved_ones_are_accepted() -> None:
    known = KnownDirectories()
    first = directory("/one", ONE)
    known.check(FILE, METADATA, [first], metadata_is_new=True)
    known.learn([first])
    known.check(
        FILE,
        METADATA,
        [directory("/one", ONE, partitions=3), directory("/two", TWO)],
        metadata_is_new=False,
    )
    moved = directory("/elsewhere", ONE, partitions=3)
    known.check(FILE, METADATA, [moved], metadata_is_new=False)
    known.learn([moved])
    assert known.paths == {ONE: "/elsewhere"}
    assert absolute(Path("logs")) == str(Path.cwd() / "logs")


def test_partitions_without_their_metadata_are_refused() -> None:
    known = KnownDirectories(5, {ONE: "/one"})
    said = refusal(known, directory("/one", ONE, partitions=2), metadata_is_new=True)
    assert "/data/metadata is missing" in said and "move /one away" in said
    known.check(FILE, METADATA, [directory("/one", ONE)], metadata_is_new=True)


def test_partitions_of_other_metadata_are_refused() -> None:
    said = refusal(
        KnownDirectories(5, {ONE: "/one"}),
        directory("/one", ONE),
        directory("/two", TWO, partitions=1),
    )
    assert "/two holds partitions" in said and f"{encode_uuid(TWO)}=/two to {FILE}" in said


def test_a_removed_directory_is_refused_and_a_failed_one_is_not() -> None:
    known = KnownDirectories(5, {ONE: "/one", TWO: "/two"})
    said = refusal(known, directory("/one", ONE))
    assert "/two" in said and encode_uuid(TWO) in said and str(FILE) in said
    assert "/two" in refusal(known, directory("/one", ONE), directory("/two", UUID(int=3))), (
        "the mount point without its disk"
    )
    known.check(
        FILE,
        METADATA,
        [directory("/one", ONE), directory("/two", None, failed="Input/output error")],
        metadata_is_new=False,
    )


def test_older_metadata_is_refused() -> None:
    known = KnownDirectories(5)
    known.check_index(FILE, METADATA, 5)
    with pytest.raises(StorageError, match=r"ends at 4.*it was at 5.*metadata\.index=4 in"):
        known.check_index(FILE, METADATA, 4)
