"""What all SASL mechanisms share: names, the server's side of a login, and its failure. A core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

PLAIN: Final = "PLAIN"
SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER)
"""The mechanisms of mqd, with Kafka's names."""


class LoginFailed(Exception):
    """A login failed. `str()` is the reason for the log of the node."""

    def __init__(self, reason: str, message: str | None = None) -> None:
        """`message` is Kafka's sentence for the client. Without it, the client gets a generic
        one that does not show whether the user exists.
        """
        super().__init__(reason)
        self.message = message


class PendingResponse(NamedTuple):
    """The response to a token depends on work that takes milliseconds."""

    work: Callable[[], bool]
    """May run in a thread."""
    conclude: Callable[[bool], bytes]
    """The response to the token, by the result of the work. Raises LoginFailed."""


class MechanismServer(Protocol):
    """The server's side of one login."""

    user: str | None
    """The user that the client names; proved only when `is_complete`."""
    is_complete: bool
    expires_at_ms: int | None
    """When the credential expires, in milliseconds since the Unix epoch. None: never."""

    def respond(self, token: bytes, now_ms: int) -> bytes | PendingResponse:
        """The response to a token of the client. Raises LoginFailed, which ends the login."""
        ...
