"""Reads certificates again while the node runs: when their files change, and after SIGHUP. Warns
before they expire.

A new certificate is for new connections: those that are open keep theirs. If a file is invalid, the
old certificate stays, and the log has the reason.
"""

from __future__ import annotations

import logging
import stat
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import trio

from mqd.config import ConfigError, StartError
from mqd.io.tls_contexts import own_certificate
from mqd.security.distinguished_name import expires_at
from mqd.security.tls_settings import TlsSettings

logger = logging.getLogger(__name__)

CHECK_SECONDS = 2.0
"""A changed file is read after this time at most."""
_CHECKS_A_DAY = int(86_400 / CHECK_SECONDS)
_WARN_DAYS = 30

_Fingerprint = tuple[tuple[int, int, int] | None, ...]


class CertificateSource:
    """The certificate of one listener."""

    def __init__(self, name: str, settings: TlsSettings, load: Callable[[], None]) -> None:
        """`load()`: reads the files, and raises StartError without a change."""
        self.name = name
        self._settings = settings
        self._files = tuple(map(Path, settings.files))
        self._load = load
        self._seen = self._fingerprint()

    def check(self, *, is_forced: bool) -> None:
        """Read the files if they have changed, or anyway."""
        seen = self._fingerprint()
        if seen == self._seen and not is_forced:
            return
        self._seen = seen
        try:
            self._load()
        except StartError as error:
            logger.error(
                "certificate not loaded, the old one stays listener=%s reason=%s", self.name, error
            )
        else:
            logger.info("certificate loaded listener=%s", self.name)
            self.warn(datetime.now(UTC))

    def warn(self, now: datetime) -> None:
        """Warn of a certificate that expires soon, and of a key that others can read."""
        store = self._settings.key_store
        if store is None:
            return
        try:
            days = (expires_at(own_certificate(self._settings, where="")) - now).days
            mode = 0 if store.location is None else Path(store.location).stat().st_mode
        except (ConfigError, OSError, ValueError):
            return  # reported when it is loaded
        if days < _WARN_DAYS:
            logger.warning(
                "certificate expires soon listener=%s days=%d remedy='run mqctl cert renew, or "
                "replace the file'",
                self.name,
                days,
            )
        if mode & stat.S_IROTH:
            logger.warning(
                "every user of this machine can read the private key listener=%s file=%s "
                "remedy='chmod 600'",
                self.name,
                store.location,
            )

    def _fingerprint(self) -> _Fingerprint:
        found: list[tuple[int, int, int] | None] = []
        for path in self._files:
            try:
                status = path.stat()
            except OSError:
                found.append(None)
            else:
                found.append((status.st_ino, status.st_size, status.st_mtime_ns))
        return tuple(found)


class Certificates:
    """Those of all listeners."""

    def __init__(self) -> None:
        self.sources: list[CertificateSource] = []
        self._wanted = trio.Event()

    def reload(self) -> bool:
        """Read all of them soon. Returns False if there are none."""
        self._wanted.set()
        return bool(self.sources)

    async def run(self) -> None:
        """Watch the files until cancelled."""
        if not self.sources:
            return
        checks = 0
        while True:
            if checks % _CHECKS_A_DAY == 0:
                for source in self.sources:
                    source.warn(datetime.now(UTC))
            checks += 1
            with trio.move_on_after(CHECK_SECONDS):
                await self._wanted.wait()
            is_forced = self._wanted.is_set()
            if is_forced:
                self._wanted = trio.Event()
            for source in self.sources:
                source.check(is_forced=is_forced)
