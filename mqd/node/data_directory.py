"""The data directory of a node, and what a start must find in it before it trusts its logs.

It belongs to one process (I16). Files beside the logs record which log directories belong to the
metadata (I18), the last registration (I25), and the disk serials of the log directories.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from mqd.config import StartError
from mqd.errors import PASSING_ERRNOS
from mqd.io.disk import Disk
from mqd.log.disk import disk_serials, known_directories, last_registration
from mqd.log.disk.disk_serials import load_disk_serials, older_copies, store_disk_serials
from mqd.log.disk.known_directories import (
    KnownDirectories,
    load_known_directories,
    store_known_directories,
)
from mqd.log.disk.last_registration import (
    LastRegistration,
    forget_last_registration,
    machine_ran_on,
    may_vouch,
    previous_broker_epoch,
    registered_directories,
    store_last_registration,
)
from mqd.log.service import LogService
from mqd.node import first_users
from mqd.raft.journal_start import journal_exists

logger = logging.getLogger(__name__)


class DataDirectory:
    def __init__(self, path: Path, disk: Disk) -> None:
        self.path = path
        self.metadata = path / "metadata"
        self.registration_file = path / last_registration.NAME
        self.first_users_file = path / first_users.NAME
        self._directories_file = path / known_directories.NAME
        self._serials_file = path / disk_serials.NAME
        self._disk = disk
        self._recorded_serials: Mapping[UUID, int] = {}
        self._known: KnownDirectories

    def lock(self) -> Any:
        """The lock of this process. Raises StartError if another process has it."""
        try:
            return self._disk.lock(self.path / ".lock")
        except BlockingIOError:
            raise StartError(
                f"{self.path}: another mqd process uses this data "
                "directory; stop it, or choose another one with --data"
            ) from None

    # -- the last registration

    def machine_ran_on(self) -> bool:
        """Whether the machine has not restarted since the last registration."""
        return machine_ran_on(self._disk, self.registration_file)

    def may_vouch(self) -> bool:
        """Whether the last registration can vouch for the logs."""
        return may_vouch(self._disk, self.registration_file)

    def registered_directories(self) -> frozenset[UUID]:
        return registered_directories(self._disk, self.registration_file)

    def previous_broker_epoch(self, logs: LogService) -> int:
        """The registration up to which this node vouches for its logs (I25)."""
        return previous_broker_epoch(
            self._disk,
            self.registration_file,
            clean=logs.registry.clean_start,
            directories=_usable_directories(logs),
        )

    def store_registration(self, broker_epoch: int, logs: LogService) -> None:
        """Record this registration: it vouches for the usable log directories."""
        try:
            last = LastRegistration(broker_epoch, self._disk.boot_id(), _usable_directories(logs))
            store_last_registration(self._disk, self.registration_file, last)
        except OSError as error:
            if error.errno not in PASSING_ERRNOS:
                raise
            # the file has an older epoch, which vouches for nothing
            logger.warning("cannot write file=%s reason=%s", self.registration_file, error)

    def forget_registration(self) -> None:
        """Vouch for nothing from now on."""
        with suppress(OSError):
            forget_last_registration(self._disk, self.registration_file)

    # -- disk serials

    def vouch_for_nothing_lost(self, logs: LogService) -> None:
        """Forget the last registration if the logs may lack records (I25).

        Only the checkpoints show what is missing, and even a failed start writes them again. So the
        removal is durable before that.
        """
        try:
            self._recorded_serials = load_disk_serials(self._disk, self._serials_file)
            older = self._report_older_copies(logs)
            if older or logs.registry.may_lack_records:
                forget_last_registration(self._disk, self.registration_file)
        except OSError:
            logs.release_locks()
            raise
        if older:
            self._store_disk_serials(logs.found_serials())
        logs.housekeeping.on_log_ends_stored = self._store_disk_serials

    def _report_older_copies(self, logs: LogService) -> bool:
        """Whether any log directory is an older copy of itself."""
        found = logs.found_serials()
        older = older_copies(self._recorded_serials, found)
        for directory in logs.directories.values():
            if directory.id in older:
                logger.error(
                    "log directory is an older copy, acknowledged records may be missing"
                    " directory=%s expected_disk_serial=%d found_disk_serial=%d"
                    " effect='this node copies them from other replicas; records without one stay"
                    " lost' remedy='stop the node and restore the newer directory'",
                    directory.path,
                    older[directory.id],
                    found[directory.id],
                )
        return bool(older)

    def _store_disk_serials(self, serials: Mapping[UUID, int]) -> None:
        """In a worker thread while the node runs.

        A directory that is not online now keeps its line.
        """
        recorded = {**self._recorded_serials, **serials}
        if recorded == self._recorded_serials:
            return
        try:
            store_disk_serials(self._disk, self._serials_file, recorded)
            self._recorded_serials = recorded
        except OSError as error:
            # the next start has only the serial that the controller knows
            logger.warning("cannot write file=%s reason=%s", self._serials_file, error)

    # -- known log directories

    def check_directories(self, logs: LogService, *, voters: int) -> None:
        """Raise StorageError, before anything is changed, if logs and metadata do not belong
        together (I18).
        """
        directories = logs.directories.values()
        known = load_known_directories(self._disk, self._directories_file)
        is_new = voters == 1 and not journal_exists(self._disk, self.metadata)
        known.check(self._directories_file, self.metadata, directories, metadata_is_new=is_new)
        known.learn(directories)
        store_known_directories(self._disk, self._directories_file, known)
        self._known = known

    def check_metadata_index(self, index: int) -> None:
        """Raise StorageError if the replayed metadata is older than that of the last start. Call it
        before partitions are opened.
        """
        known = self._known
        known.check_index(self._directories_file, self.metadata, index)
        known.metadata_index = index
        try:
            store_known_directories(self._disk, self._directories_file, known)
        except OSError as error:
            if error.errno not in PASSING_ERRNOS:
                raise
            # the next start compares with an older index
            logger.warning("cannot write file=%s reason=%s", self._directories_file, error)


def _usable_directories(logs: LogService) -> frozenset[UUID]:
    return frozenset(
        one.id for one in logs.directories.values() if one.failed is None and one.id is not None
    )
