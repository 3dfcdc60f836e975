"""The loggers of this process as Kafka's tools see them: the configuration keys of a BROKER_LOGGER
resource.

Kafka's level names, Python's loggers; TRACE and FATAL are DEBUG and CRITICAL by another name.
"""

from __future__ import annotations

import logging

ROOT = "root"

LEVELS = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}

SETTABLE = ("TRACE", "DEBUG", "INFO", "WARN")
"""Levels that a client may set: above WARN, a node would not record what the client does next."""

_NAMES = {level: name for name, level in reversed(LEVELS.items()) if name != "TRACE"}


def logger_levels() -> dict[str, str]:
    """Every logger that exists, with the level in force."""
    loggers = {name: logging.getLogger(name) for name in sorted(logging.root.manager.loggerDict)}
    return {
        name: _name(logger.getEffectiveLevel())
        for name, logger in {ROOT: logging.root, **loggers}.items()
    }


def set_logger_level(name: str, level: str | None) -> None:
    """`level` is one of SETTABLE; None lets the logger follow its parent again."""
    logger = logging.root if name == ROOT else logging.getLogger(name)
    logger.setLevel(logging.NOTSET if level is None else LEVELS[level])


def _name(level: int) -> str:
    """The name of the nearest level at or below: Python's levels are any int."""
    return _NAMES[max((known for known in _NAMES if known <= level), default=logging.DEBUG)]
