"""The file in the data directory that names the log directories which belong to the metadata.

A node deletes partitions that its metadata does not have, because their topics were deleted while
it was down. That is correct only if metadata and logs belong together. If one of them is missing,
too old, or of another node, the `check` methods refuse the start before anything is changed. An
operator may edit the file: the error messages explain how.

    # comment
    version=0
    metadata.index=57                            index of the metadata at the last start
    xtzWWN4bTjitpL3kfd9s5g=/var/lib/mqd/logs     directory id (of its meta.properties) and path
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from mqd.errors import StorageError
from mqd.log.log_directory import LogDirectory
from mqd.protocol.files import FileFormatError, decode_uuid, encode_uuid

if TYPE_CHECKING:
    from mqd.io.disk import Disk

NAME = "log-directories"
_VERSION, _INDEX = "version", "metadata.index"
_HEAD = """\
# The log directories that belong to the metadata beside this file, as directory.id=path.
# mqd writes this file; edit it while mqd is stopped. When a directory is lost for good, remove its
# line: its partitions then begin again empty.
"""


@dataclass(slots=True)
class KnownDirectories:
    """The content of the file. `metadata_index`: of the last applied image. It only rises."""

    metadata_index: int = 0
    paths: dict[UUID, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        lines = [f"{_VERSION}=0", f"{_INDEX}={self.metadata_index}"]
        lines += [
            f"{encode_uuid(directory_id)}={path}" for directory_id, path in self.paths.items()
        ]
        return (_HEAD + "".join(f"{line}\n" for line in lines)).encode(errors="surrogateescape")

    def check(
        self,
        file: Path,
        metadata: Path,
        directories: Iterable[LogDirectory],
        *,
        metadata_is_new: bool,
    ) -> None:
        """Call this before the metadata is opened. `metadata_is_new`: it is missing, and there is
        no other voter to copy it from.

        Raises StorageError if the start would delete or replace partitions. The message has the
        file and the remedy.
        """
        directories = list(directories)
        for directory in directories:
            if metadata_is_new and directory.partitions:
                raise StorageError(
                    f"the metadata in {metadata} is missing, but {directory.path} holds "
                    f"partitions ({directory.partitions}), which would"
                    f" be deleted as unknown: restore {metadata}, or move {directory.path} away"
                )
        for directory in directories:
            if directory.partitions and directory.id is not None and directory.id not in self.paths:
                raise StorageError(
                    f"{directory.path} holds partitions ({directory.partitions}), but does "
                    f"not belong to the metadata in {metadata}, which"
                    " would delete them. Give --data the directory that it belongs to, or "
                    "remove it from log.dirs. If it does belong"
                    f" here, add the line {encode_uuid(directory.id)}={directory.path} to {file}"
                )
        online = {directory.id for directory in directories}
        offline = {
            absolute(directory.path) for directory in directories if directory.failed is not None
        }
        for directory_id, path in self.paths.items():
            if directory_id not in online and path not in offline:
                raise StorageError(
                    f"log directory {path} (directory.id {encode_uuid(directory_id)}) is not "
                    "in log.dirs, or not mounted there. Restore"
                    f" it. If it is lost permanently, remove its line from {file}: its "
                    "partitions then start empty"
                )

    def check_index(self, file: Path, metadata: Path, index: int) -> None:
        """Call this before the image of `index` is applied. Raises StorageError if a newer one was
        applied before.
        """
        if index < self.metadata_index:
            raise StorageError(
                f"the metadata in {metadata} ends at {index}, but at the last start it was at "
                f"{self.metadata_index}: topics created since"
                " would be deleted. Restore newer metadata; to continue with this and lose "
                f"them, set {_INDEX}={index} in {file}"
            )

    def learn(self, directories: Iterable[LogDirectory]) -> None:
        """Add these directories with their paths."""
        for directory in directories:
            if directory.id is not None:
                self.paths[directory.id] = absolute(directory.path)


def absolute(path: Path) -> str:
    """A path as the file has it: on one line, and independent of the working directory."""
    return str(path.absolute()).replace("\n", "?")


def load_known_directories(disk: Disk, file: Path) -> KnownDirectories:
    """The content of the file; empty if it is missing. Raises StorageError if it is damaged."""
    try:
        text = disk.read_bytes(file).decode(errors="surrogateescape")
    except FileNotFoundError:
        return KnownDirectories()
    known = KnownDirectories()
    version = None
    for line in text.split("\n"):
        if line.strip() and not line.startswith("#"):
            name, found, value = line.partition("=")
            try:
                if name == _VERSION:
                    version = value
                elif name == _INDEX:
                    known.metadata_index = int(value)
                else:
                    known.paths[decode_uuid(name)] = value
            except (ValueError, FileFormatError):
                found = ""
            if not found:
                raise StorageError(
                    f"{file}: {line[:80]!r} is not a valid line: expected {_VERSION}, "
                    f"{_INDEX} or directory.id=path"
                )
    if version != "0":
        raise StorageError(
            f"{file} has version {version}; this release supports only 0: start the release "
            "of mqd that wrote it"
        )
    return known


def store_known_directories(disk: Disk, file: Path, known: KnownDirectories) -> None:
    """Write the file if its content changes; durable on return. Raises OSError."""
    data = known.encode()
    if not disk.exists(file) or disk.read_bytes(file) != data:
        disk.write_atomic(file, data)
