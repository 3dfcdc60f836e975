"""The file with the users of PLAIN on one listener (security/hashed_users.py): read at the start,
when it changes, and after SIGHUP.

If the file is invalid at the start, the node does not start. Later, the old users stay, and the log
has the reason.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path

from mqd.config import StartError
from mqd.file_modes import OTHERS_CAN_CHANGE, others_can_read, remedy_for
from mqd.limits import USERS_FILE_BYTES_MAX
from mqd.node.watched_files import fingerprint
from mqd.security.hashed_users import parse_users
from mqd.security.scram_credentials import ScramCredential

logger = logging.getLogger(__name__)


class UsersFile:
    """The file of one listener."""

    def __init__(
        self,
        listener: str,
        path: Path,
        replace: Callable[[Mapping[str, ScramCredential]], None],
    ) -> None:
        """Reads the file. `replace(users)` is called then, and after each change. Raises
        StartError.
        """
        self._listener = listener
        self._path = path
        self._replace = replace
        self._seen = fingerprint((path,))
        self._load()

    def check(self, *, is_forced: bool) -> None:
        """Read the file if it has changed, or anyway."""
        seen = fingerprint((self._path,))
        if seen == self._seen and not is_forced:
            return
        self._seen = seen
        try:
            count = self._load()
        except StartError as error:
            logger.error(
                "users not loaded, the old ones stay listener=%s reason=%s", self._listener, error
            )
        else:
            logger.info("users loaded listener=%s users=%d", self._listener, count)
            self._warn()

    def warn(self, now: datetime) -> None:
        """Warn of a file that others can read."""
        self._warn()

    def _warn(self) -> None:
        try:
            is_readable = others_can_read(self._path)
        except OSError:
            return  # reported when it is loaded
        if is_readable:
            logger.warning(
                "users other than the owner can read the hashes of passwords listener=%s file=%s "
                "remedy=%s",
                self._listener,
                self._path,
                remedy_for(self._path),
            )

    def _load(self) -> int:
        """Returns the number of users. Raises StartError, and then changes nothing."""
        try:
            status = self._path.stat()
            if status.st_size > USERS_FILE_BYTES_MAX:
                raise ValueError(f"it has more than {USERS_FILE_BYTES_MAX} bytes")
            users = parse_users(self._path.read_text(encoding="utf-8"))
        except OSError as error:
            reason = error.strerror or str(error)
            raise self._failure(f"cannot be read ({reason})", "check its path and owner") from None
        except UnicodeDecodeError:
            raise self._failure("is not UTF-8", "save it as UTF-8") from None
        except ValueError as error:
            raise self._failure(f"is invalid: {error}", "correct it") from None
        if status.st_mode & OTHERS_CAN_CHANGE:
            raise self._failure(
                "can be changed by users other than its owner", remedy_for(self._path)
            )
        self._replace(users)
        return len(users)

    def _failure(self, what: str, remedy: str) -> StartError:
        return StartError(
            f"listener {self._listener}: the users_file {self._path} {what}: {remedy}"
        )
