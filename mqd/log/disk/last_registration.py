"""What this node knows of its last registration: whether it comes back with everything that it had
then.

The controller asks each node that registers for the broker epoch of its previous life (KIP-966).
Whoever can name it has everything that it ever wrote and stays in the in-sync replicas it was in;
whoever cannot may have lost records that were acknowledged on its word, and must copy them again
first. So must a node one of whose log directories of then is not here now.

Apache Kafka lets only an orderly stop name it. Here a killed process may, too, as long as the
machine was not restarted: what was written and not synced is then still in the page cache. After a
power cut, a restored disk or a failed sync it may not.

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
"""What a node says that cannot vouch for its logs."""

_EPOCH = re.compile(r"-1|[0-9]{1,19}")
_EPOCH_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LastRegistration:
    """Which registration it was, in which run of the machine, and with which log
    directories (their ids).
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
    """Raises ValueError for bytes that no `encode_last_registration` wrote."""
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
    """Durable on return."""
    disk.write_atomic(path, encode_last_registration(last))


def previous_broker_epoch(
    disk: Disk, path: Path, *, clean: bool, directories: Collection[UUID]
) -> int:
    """The epoch to register with; NO_BROKER_EPOCH unless everything written then is known to be
    here.

    `clean`: whether an orderly stop left its marker in every log directory. `directories`: those
    that can be used. That a restart of the machine may have lost something is made durable: this
    life may end in order before it has registered, and its marker must not vouch for what the one
    before had. And so is, where the disk takes it, that an orderly stop before such a restart lost
    nothing: the marker that says so is gone by now, and this life may be killed before it has
    registered. StorageError for a file that nobody understands; OSError when it can be neither
    written nor removed.
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
    """Whether nothing tells that the machine was restarted since the last registration:
    what was written, synced or not, is there.
    """
    try:
        last = decode_last_registration(disk.read_bytes(path))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return True  # a file that cannot be understood is told of by `previous_broker_epoch`
    return last.boot_id == disk.boot_id()


def registered_directories(disk: Disk, path: Path) -> frozenset[UUID]:
    """The log directories of the last registration, by id; none where the file does not say."""
    try:
        return decode_last_registration(disk.read_bytes(path)).directories
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return frozenset()


def may_vouch(disk: Disk, path: Path) -> bool:
    """Whether it is proven that the machine ran on since a registration that vouches for
    its logs (`previous_broker_epoch`).
    """
    try:
        last = decode_last_registration(disk.read_bytes(path))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    return last.broker_epoch != NO_BROKER_EPOCH and last.boot_id == disk.boot_id() != ""


def forget_last_registration(disk: Disk, path: Path) -> None:
    """Something written may be lost: the next registration is one of a node that cannot vouch for
    its logs. Durable on return; OSError.

    In which run of the machine that was stays known, where the disk takes it: `machine_ran_on` goes
    by that.
    """
    try:
        last = decode_last_registration(disk.read_bytes(path))
        store_last_registration(disk, path, replace(last, broker_epoch=NO_BROKER_EPOCH))
    except (OSError, ValueError):
        disk.remove(path)
        disk.sync_directory(path.parent)
