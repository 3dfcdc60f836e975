"""The audit log: who did what from where, and whether it was allowed. A core.

It has a logger of its own, `mqd.audit`. Denied requests are logged at INFO and allowed ones at
DEBUG, as in Apache Kafka. A principal gets a bounded number of lines in a second; the next line
about it has the number of suppressed ones.

Checks that only filter a list, or compute `authorizedOperations`, are not logged. Decisions of
Produce and Fetch are cached: allowed ones are logged once, denied ones every time.
"""

from __future__ import annotations

import logging
from typing import Final

from mqd.limits import (
    AUDIT_LINES_PER_SECOND,
    AUDIT_NAME_CHARS_MAX,
    AUDIT_PRINCIPALS_MAX,
)
from mqd.security.acls import Operation, ResourceType
from mqd.security.authorizer import Permissions, Rule, resource_text

logger = logging.getLogger("mqd.audit")

_NEVER_SUPPRESSED: Final = {"always": True}
"""The audit log has its own bound, beside that of logs.py."""


class Audit:
    """The lines of one node."""

    def __init__(self) -> None:
        self._second = 0
        self._lines: dict[str, int] = {}
        """Principal -> lines in this second, suppressed ones included."""
        self._suppressed: dict[str, int] = {}
        """Principal -> lines that were suppressed since its last line."""

    def note(
        self,
        permissions: Permissions,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
        rule: Rule,
        api: str,
        now: float,
    ) -> None:
        """Log one decision. `now`: monotonic seconds."""
        level = logging.DEBUG if rule.allowed else logging.INFO
        if not logger.isEnabledFor(level):
            return
        principal = self._counted(permissions.name, now)
        if self._lines[principal] > AUDIT_LINES_PER_SECOND:
            self._suppressed[principal] = self._suppressed.get(principal, 0) + 1
            return
        logger.log(
            level,
            "authorization result=%s principal=%r host=%s operation=%s resource=%r api=%s rule=%r "
            "suppressed=%d",
            "allowed" if rule.allowed else "denied",
            permissions.name,
            permissions.host,
            operation.name,
            resource_text(resource_type, name[:AUDIT_NAME_CHARS_MAX]),
            api,
            str(rule),
            self._suppressed.pop(principal, 0),
            extra=_NEVER_SUPPRESSED,
        )

    def _counted(self, principal: str, now: float) -> str:
        """Count a line. Returns the principal under which it counts."""
        if int(now) != self._second:
            self._second = int(now)
            self._lines.clear()
        if principal not in self._lines and len(self._lines) >= AUDIT_PRINCIPALS_MAX:
            principal = ""
        if principal not in self._suppressed and len(self._suppressed) >= AUDIT_PRINCIPALS_MAX:
            self._suppressed.clear()
        self._lines[principal] = self._lines.get(principal, 0) + 1
        return principal
