"""The last registration of this node, and whether the node still has all records that it had then.

A node that registers reports its previous broker epoch (KIP-966), if it has everything that it ever
wrote. Then it stays in the ISRs in which it was. Otherwise it may have lost records that were
acknowledged because of it, and must copy them first. The same holds if one of its log directories
is missing now.

In Apache Kafka a node reports the epoch only after a clean shutdown. Here also after a kill, if the
machine was not restarted: written data that was not synced is then still in the page cache. Not
after a power cut, on a restored disk, or after a failed sync.

    version 1
    broker_epoch 1234
    boot_id 5a4f...
    directories BQJBAM-ZQdePKOm3KwuFuw ...

The file is durable before the node is unfenced, so before it can join any in-sync replicas.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from mqd.errors import StorageError
from mqd.protocol.files import FileFormatError, decode_uuid, encode_uuid

if TYPE_CHECKING:
    from mqd.io.disk import Disk

NAME = "registration"
NO_BROKER_EPOCH = -1
"""The epoch of a node that cannot vouch for its logs."""

_EPOCH = re.compile(r"-1|[0-9]{1,19}")
_EPOCH_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LastRegistration:
    """The broker epoch of the registration, the boot of the machine, and the ids of the log
    directories.
    """

    broker_epoch: int
    boot_id: str
    directories: frozenset[UUID] = frozenset()


def encode_last_registration(last: LastRegistration) -> bytes:
    directories = " ".join(sorted(map(encode_uuid, last.directories)))
    return (
        f"version 1\nbroker_epoch {last.broker_epoch}\nboot_id {last.boot_id}\ndirectories "
        f"{directories}\n".encode()
    )


def decode_last_registration(data: bytes) -> LastRegistration:
    """Raises ValueError for bytes that `encode_last_registration` did not write."""
    lines = data.decode().split("\n")
    if len(lines) != 5 or lines[0] != "version 1" or lines[4]:
        raise ValueError("not of version 1, or truncated")
    keys = [line.partition(" ")[0] for line in lines[1:4]]
    if keys != ["broker_epoch", "boot_id", "directories"]:
        raise ValueError(f"unknown lines {keys}")
    epoch, boot_id, directories = (line.partition(" ")[2] for line in lines[1:4])
    if not _EPOCH.fullmatch(epoch) or int(epoch) > _EPOCH_MAX:
        raise ValueError(f"broker_epoch {epoch[:40]!r} is not a broker epoch")
    try:
        return LastRegistration(
            int(epoch), boot_id, frozenset(map(decode_uuid, directories.split()))
        )
    except FileFormatError as error:
        raise ValueError(str(error)) from None


def store_last_registration(disk: Disk, path: Path, last: LastRegistration) -> None:
    """Write the file; durable on return."""
    disk.write_atomic(path, encode_last_registration(last))


def previous_broker_epoch(
    disk: Disk, path: Path, *, clean: bool, directories: Collection[UUID]
) -> int:
    """The previous broker epoch for the registration. NO_BROKER_EPOCH if written data may be
    missing.

    `clean`: whether every log directory had the marker of a clean shutdown. `directories`: those
    that can be used. Raises StorageError if the file is damaged; OSError if it can be neither
    written nor removed.

    This process may end before it registers, so the result is made durable for the next one:
    - If a restart of the machine may have lost data, the epoch is removed. A clean shutdown of this
      process must not vouch for the data of the process before.
    - If a clean shutdown preceded the restart, nothing was lost, and the new boot id is written if
      the disk allows it. The markers are removed by now, and this process may be killed.
    """
    try:
        last = decode_last_registration(disk.read_bytes(path))
    except FileNotFoundError:
        return NO_BROKER_EPOCH
    except ValueError as error:
        raise StorageError(
            f"{path}: {error}; remove it: this node then copies its partitions from other replicas"
        ) from None
    boot_id = disk.boot_id()
    if not clean and not (boot_id and boot_id == last.boot_id):
        forget_last_registration(disk, path)
        return NO_BROKER_EPOCH
    if not last.directories.issubset(directories):
        return NO_BROKER_EPOCH
    if boot_id != last.boot_id and last.broker_epoch != NO_BROKER_EPOCH:
        with suppress(OSError):
            store_last_registration(disk, path, replace(last, boot_id=boot_id))
    return last.broker_epoch


def machine_ran_on(disk: Disk, path: Path) -> bool:
    """Whether nothing shows that the machine was restarted since the last registration. If so, all
    written data is there, synced or not.
    """
    try:
        last = decode_last_registration(disk.read_bytes(path))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return True  # `previous_broker_epoch` reports a damaged file
    return last.boot_id == disk.boot_id()


def registered_directories(disk: Disk, path: Path) -> frozenset[UUID]:
    """The ids of the log directories at the last registration. Empty if unknown."""
    try:
        return decode_last_registration(disk.read_bytes(path)).directories
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return frozenset()


def may_vouch(disk: Disk, path: Path) -> bool:
    """Whether it is proven that the machine was not restarted since a registration that can vouch
    for its logs.
    """
    try:
        last = decode_last_registration(disk.read_bytes(path))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    return last.broker_epoch != NO_BROKER_EPOCH and last.boot_id == disk.boot_id() != ""


def forget_last_registration(disk: Disk, path: Path) -> None:
    """Written data may be lost: the next registration cannot vouch for the logs. Durable on return.
    Raises OSError.

    Keeps the boot id for `machine_ran_on`, if the disk can store it.
    """
    try:
        last = decode_last_registration(disk.read_bytes(path))
        store_last_registration(disk, path, replace(last, broker_epoch=NO_BROKER_EPOCH))
    except (OSError, ValueError):
        disk.remove(path)
        disk.sync_directory(path.parent)
