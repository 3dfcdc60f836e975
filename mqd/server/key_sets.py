"""The key set that verifies the tokens of one listener: read at the start, and then repeatedly.

A file must be readable at the start. A URL need not respond then: until it does, no token is
accepted. A key set that was read once stays until a newer one was read. A token with an unknown key
makes the node read the set early, at most every 10 s.
"""

from __future__ import annotations

import logging
import math
import ssl
from pathlib import Path
from urllib.parse import unquote, urlsplit

import trio

from mqd.config import ConfigError, StartError
from mqd.file_modes import warning_of_change
from mqd.io.clock import Clock
from mqd.io.disk import Disk
from mqd.io.https import get_document
from mqd.io.tls_contexts import client_context
from mqd.limits import KEY_SET_BYTES_MAX, KEY_SET_TIMEOUT_SECONDS
from mqd.security.mechanism import LoginFailed
from mqd.security.oauthbearer import TokenRules, VerifiedToken
from mqd.security.sasl_options import KeySetOptions
from mqd.security.tokens import KeySet, UnknownKey, check_token, parse_key_set

logger = logging.getLogger(__name__)

_EARLY_SECONDS = 10.0
"""Pause between two early reads: tokens with invented keys must not become a flood of requests."""


class TokenVerifier:
    """Checks the tokens of one listener."""

    def __init__(
        self, options: KeySetOptions | None, rules: TokenRules, disk: Disk, clock: Clock
    ) -> None:
        self._options = options
        self._rules = rules
        self._disk = disk
        self._clock = clock
        self._keys = KeySet()
        self._read_at = -math.inf
        self._wanted = trio.Event()

    def check(self, token: str, now_ms: int) -> VerifiedToken:
        """Raises LoginFailed."""
        try:
            return check_token(token, self._keys, self._rules, now_ms)
        except UnknownKey as error:
            self._wanted.set()
            if not len(self._keys):
                raise LoginFailed(
                    "the key set (sasl.oauthbearer.jwks.endpoint.url) could not be read yet"
                ) from error
            raise

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Read the keys, then again until cancelled. Raises StartError for a file that cannot be
        read at the start: of the key set, or of the trust store for its URL.
        """
        options = self._options
        if options is None:
            task_status.started()
            return
        if options.url.startswith("file:"):
            try:
                await self._read(options)
            except (OSError, ValueError) as error:
                raise StartError(
                    f"sasl.oauthbearer.jwks.endpoint.url: {options.url} has no usable key set: "
                    f"{error}"
                ) from error
        self._warn_of_modes(options)
        _context_of(options)  # an unreadable trust store prevents the start
        task_status.started()
        failures = 0
        while True:
            if self._read_at > -math.inf or failures:
                await self._pause(options, failures)
            try:
                await self._read(options)
                failures = 0
            except (OSError, ValueError) as error:
                failures += 1
                logger.warning(
                    "cannot read the key set of tokens url=%s reason=%s", options.url, error
                )

    def _warn_of_modes(self, options: KeySetOptions) -> None:
        """Warn of files whose writers can make tokens that the node accepts."""
        files = [] if options.tls is None else list(options.tls.settings.files)
        if options.url.startswith("file:"):
            files = [_path_of(options.url)]
        for file in files:
            warning = warning_of_change(Path(file), "make tokens that the node accepts")
            if warning is not None:
                logger.warning("unsafe key set of tokens detail=%r", warning)

    async def _pause(self, options: KeySetOptions, failures: int) -> None:
        """Wait until the next read: for the refresh interval, or less if a token has an unknown
        key.
        """
        if failures:
            backoff_ms = options.retry_backoff_ms * 2 ** min(failures - 1, 20)
            await trio.sleep(min(backoff_ms, options.retry_backoff_max_ms) / 1000)
            return
        with trio.move_on_after(options.refresh_ms / 1000):
            await trio.sleep(_EARLY_SECONDS)
            await self._wanted.wait()

    async def _read(self, options: KeySetOptions) -> None:
        """Raises OSError or ValueError."""
        self._wanted = trio.Event()
        if options.url.startswith("file:"):
            text = self._disk.read_bytes(Path(_path_of(options.url)))
        else:
            text = await self._disk.offload(_get, options)
        self._keys = parse_key_set(text)
        self._read_at = self._clock.monotonic()
        logger.debug("read the key set of tokens url=%s keys=%d", options.url, len(self._keys))


def _path_of(url: str) -> str:
    return unquote(urlsplit(url).path)


def _get(options: KeySetOptions) -> bytes:
    """Raises OSError."""
    try:
        context = _context_of(options)
    except ConfigError as error:
        raise OSError(str(error)) from None
    return get_document(
        options.url,
        timeout_seconds=KEY_SET_TIMEOUT_SECONDS,
        bytes_max=KEY_SET_BYTES_MAX,
        context=context,
    )


def _context_of(options: KeySetOptions) -> ssl.SSLContext | None:
    """Reads the files of the trust store and the key store. Raises ConfigError."""
    if options.tls is None or not options.url.startswith("https:"):
        return None
    return client_context(options.tls.settings, check_host_name=options.tls.check_host_name)
