"""The disk serial that each log directory last had: finds a directory that was replaced by an older
copy of itself.

An older copy agrees with itself, because its logs and its log end checkpoint
(log_end_checkpoint.py) are equally old. The controller knows the serial only from the next
heartbeat on. So this file in the data directory, beside the metadata, also has it.

    version 0
    BQJBAM-ZQdePKOm3KwuFuw 17            directory id (of its meta.properties) and disk serial

The file is written after the checkpoints that it names, so a crash leaves a lower serial here,
which raises no alarm. A new directory has a new id, and no line. A release that does not know this
file leaves a lower serial, too.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import UUID

from mqd.protocol.files import FileFormatError, decode_uuid, encode_uuid

if TYPE_CHECKING:
    from mqd.io.disk import Disk

logger = logging.getLogger(__name__)

NAME: Final = "disk-serials"
_VERSION: Final = "version 0"
_LINE = re.compile(r"(\S{22}) ([0-9]{1,19})", re.ASCII)


def encode_disk_serials(serials: Mapping[UUID, int]) -> bytes:
    lines = sorted(f"{encode_uuid(one)} {serial}" for one, serial in serials.items())
    return "".join(f"{line}\n" for line in (_VERSION, *lines)).encode()


def decode_disk_serials(data: bytes) -> dict[UUID, int]:
    """Raises FileFormatError for bytes that `encode_disk_serials` did not write."""
    lines = data.decode(errors="replace").split("\n")
    if lines[0] != _VERSION or lines.pop():
        raise FileFormatError("not of version 0, or cut off")
    serials: dict[UUID, int] = {}
    for line in lines[1:]:
        found = _LINE.fullmatch(line)
        if found is None:
            raise FileFormatError(f"line {line[:80]!r} is no directory id with a disk serial")
        serials[decode_uuid(found[1])] = int(found[2])
    return serials


def load_disk_serials(disk: Disk, file: Path) -> dict[UUID, int]:
    """The disk serials by directory id; empty if the file is missing or damaged. Raises OSError."""
    try:
        return decode_disk_serials(disk.read_bytes(file))
    except FileNotFoundError:
        return {}
    except FileFormatError as error:
        logger.warning("disk serials ignored file=%s reason=%s", file, error)
        return {}


def store_disk_serials(disk: Disk, file: Path, serials: Mapping[UUID, int]) -> None:
    """Write the file; durable on return. Raises OSError."""
    disk.write_atomic(file, encode_disk_serials(serials))


def older_copies(recorded: Mapping[UUID, int], found: Mapping[UUID, int]) -> dict[UUID, int]:
    """The directories that are older copies of themselves, each with the serial that was
    expected.
    """
    return {one: recorded[one] for one, serial in found.items() if serial < recorded.get(one, 0)}
