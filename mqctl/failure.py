"""A failure that ends a command, and the exit codes."""

from __future__ import annotations

OK, FAILED, USAGE, PARTIAL, TIMED_OUT = range(5)


class Failure(Exception):
    """Ends the command: a message, what to do, and the exit code."""

    def __init__(self, message: str, *, remedy: str = "", exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.exit_code = exit_code
