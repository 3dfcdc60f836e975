"""What the connector raises. Each message is a full sentence: what happened, why, what to do."""

from __future__ import annotations

SHOWN_MAX = 300


class ConnectorError(Exception):
    """The base of all errors of the connector."""


class OptionError(ConnectorError, ValueError):
    """An option is missing, malformed, or not supported."""


class DataLoss(ConnectorError):
    """Records that the query has not read are no longer available."""


def shortened(text: str) -> str:
    """A value for a message: its beginning, where it is long."""
    if len(text) <= SHOWN_MAX:
        return text
    return f"{text[:SHOWN_MAX]}... ({len(text)} characters)"
