"""The SASL logins of all listeners of a node: their options, users and keys.

The table of PLAIN users is made at the start, and again when its file changes. SCRAM credentials
are looked up in the metadata at each login, so a change is effective at once.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import trio

from mqd.controller.image import MetadataImage
from mqd.io.clock import Clock
from mqd.io.disk import Disk
from mqd.io.entropy import Entropy
from mqd.security.hashed_users import HashedUsers
from mqd.security.mechanism import OAUTHBEARER, PLAIN, MechanismServer
from mqd.security.plain import PlainServer, PlainTable, PlainUsers
from mqd.security.sasl_options import SaslOptions
from mqd.security.sasl_session import SaslSession
from mqd.security.scram import BY_NAME, NONCE_BITS, FakeCredentials, ScramServer, text_of_bits
from mqd.security.scram_credentials import ScramCredential
from mqd.server.address_fair_lock import AddressFairLock

if TYPE_CHECKING:
    from mqd.server.key_sets import TokenVerifier

logger = logging.getLogger(__name__)

_SHOWN_CHARACTERS_MAX = 64


class SaslListener:
    """The logins of one listener."""

    def __init__(self, service: SaslService, options: SaslOptions) -> None:
        self._service = service
        self.options = options
        self.hashed_users: HashedUsers | None = None
        """Users of PLAIN, if they are in a file (node/users_file.py)."""
        self._plain: PlainTable
        if options.users_file is not None:
            self._plain = self.hashed_users = HashedUsers(service.random_bytes(32), service.secret)
        else:
            self._plain = PlainUsers(options.passwords, service.random_bytes(32))
        self.verifier: TokenVerifier | None = None
        if OAUTHBEARER in options.mechanisms:
            from mqd.server.key_sets import TokenVerifier

            self.verifier = TokenVerifier(
                options.key_set, options.token_rules, service.disk, service.clock
            )

    def session(self) -> SaslSession:
        """The authentication of a new connection."""
        options = self.options
        return SaslSession(options.mechanisms, self._begin, options.max_reauth_ms)

    def _begin(self, mechanism: str) -> MechanismServer:
        """The server's side of a new login."""
        if mechanism == PLAIN:
            return PlainServer(self._plain)
        if mechanism == OAUTHBEARER:
            from mqd.security.oauthbearer import OAuthBearerServer

            assert self.verifier is not None
            return OAuthBearerServer(self.verifier.check)
        number = BY_NAME[mechanism]

        def credential_of(user: str) -> ScramCredential | None:
            return self._service.image().scram_credentials.get((user, number))

        nonce = text_of_bits(self._service.random_bits(NONCE_BITS) | 1 << (NONCE_BITS - 1))
        return ScramServer(number, credential_of, self._service.fakes, nonce)


class SaslService:
    """The listeners of one node that demand SASL."""

    def __init__(
        self,
        options: Mapping[str, SaslOptions],
        image: Callable[[], MetadataImage],
        *,
        entropy: Entropy,
        clock: Clock,
        disk: Disk,
        secret: bytes | None,
    ) -> None:
        """`options`: of each listener with SASL, by its name. `secret`: see login_secret.py; None
        where no listener has SASL.
        """
        self.image = image
        self.entropy = entropy
        self.clock = clock
        self.disk = disk
        key = secret if secret is not None else self.random_bytes(32)
        self.secret = hmac.digest(key, b"salts of unknown users", "sha256")
        self.fakes = FakeCredentials(self.secret, lambda: self.image().scram_shapes)
        self._checks = trio.CapacityLimiter(1)
        """One thread: an attacker with wrong passwords keeps one core busy."""
        self._password_lock = AddressFairLock()
        self._listeners = {name: SaslListener(self, each) for name, each in options.items()}
        self.failures = 0
        """Logins that failed."""

    def listener(self, name: str) -> SaslListener:
        return self._listeners[name]

    @property
    def listeners(self) -> Iterable[SaslListener]:
        return self._listeners.values()

    async def work(self, work: Callable[[], bool], address: str) -> bool:
        """Check a password of a client in a thread. The addresses of clients take turns."""
        async with self._password_lock.held(address):
            return await self.disk.offload(work, limiter=self._checks)

    def random_bits(self, count: int) -> int:
        return self.entropy.below(1 << count)

    def random_bytes(self, count: int) -> bytes:
        return self.random_bits(8 * count).to_bytes(count, "big")

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the key sets of tokens current. Raises StartError."""
        async with trio.open_nursery() as nursery:
            for listener in self._listeners.values():
                if listener.verifier is not None:
                    await nursery.start(listener.verifier.run)
            task_status.started()
            await trio.sleep_forever()

    def log_failure(
        self, user: str | None, peer: str, listener: str, mechanism: str | None, reason: str
    ) -> None:
        """Log a login that failed. `mqd/logs.py` bounds the number of lines."""
        self.failures += 1
        logger.warning(
            "authentication failed user=%s peer=%s listener=%s mechanism=%s reason=%s",
            shown_user(user),
            peer,
            listener,
            mechanism,
            reason,
        )


def shown_user(user: str | None) -> str:
    """The name that a client gave, for a log line: in quotes, without control characters, and not
    longer than 64 characters.
    """
    if user is None:
        return "-"
    end = "…" if len(user) > _SHOWN_CHARACTERS_MAX else ""
    return ascii(user[:_SHOWN_CHARACTERS_MAX]) + end
