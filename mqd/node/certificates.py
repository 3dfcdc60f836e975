"""Reads certificates again while the node runs: when their files change, and after SIGHUP. Warns
before they expire.

A new certificate is for new connections: those that are open keep theirs. If a file is invalid, the
old certificate stays, and the log has the reason.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from mqd.config import ConfigError, StartError
from mqd.file_modes import others_can_read, remedy_for, warning_of_change
from mqd.io.tls_contexts import own_certificate
from mqd.node.watched_files import fingerprint
from mqd.security.distinguished_name import expires_at
from mqd.security.tls_settings import TlsSettings

logger = logging.getLogger(__name__)

_WARN_DAYS = 30


class CertificateSource:
    """The certificate of one listener."""

    def __init__(
        self,
        name: str,
        settings: TlsSettings,
        load: Callable[[], None],
        *,
        checks_mode: bool = True,
    ) -> None:
        """`load()`: reads the files, and raises StartError without a change. `checks_mode`: False
        if another listener has the same file and checks who can read it.
        """
        self._checks_mode = checks_mode
        self.name = name
        self._settings = settings
        self._files = tuple(map(Path, settings.files))
        self._load = load
        self._seen = fingerprint(self._files)

    def check(self, *, is_forced: bool) -> None:
        """Read the files if they have changed, or anyway."""
        seen = fingerprint(self._files)
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
        """Report a certificate that expires soon or has expired, and a key that others can read."""
        store = self._settings.key_store
        if store is None:
            return
        try:
            expires = expires_at(own_certificate(self._settings, where=""))
            file = None if store.location is None else Path(store.location)
            is_readable = self._checks_mode and file is not None and others_can_read(file)
        except (ConfigError, OSError, ValueError):
            return  # reported when it is loaded
        days = (expires - now).days
        if days < 0:
            logger.error(
                "certificate expired listener=%s days_ago=%d remedy='run mqctl cert renew, or "
                "replace the file'",
                self.name,
                (now - expires).days,
            )
        elif days < _WARN_DAYS:
            logger.warning(
                "certificate expires soon listener=%s days=%d remedy='run mqctl cert renew, or "
                "replace the file'",
                self.name,
                days,
            )
        trusted = self._settings.trust_store
        if trusted is not None and trusted.location is not None:
            warning = warning_of_change(
                Path(trusted.location), "decide whose certificates are trusted"
            )
            if warning is not None:
                logger.warning("unsafe trust store listener=%s detail=%r", self.name, warning)
        if file is not None and is_readable:
            logger.warning(
                "users other than the owner can read the private key file=%s remedy=%s",
                file,
                remedy_for(file),
            )
