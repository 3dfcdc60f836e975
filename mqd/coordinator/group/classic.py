"""Classic groups."""

from __future__ import annotations

from mqd.coordinator.group.state import Part


class Classic(Part):
    """Classic groups."""
