"""Step 5 of chaos/secure_rolling.py: at about the same time, a password is rotated, an ACL is
revoked and a user is deleted. Probes report when each change has its effect.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from mqd.client import sync
from mqd.client.access import (
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
    ScramDeletion,
    ScramMechanism,
    ScramUpsertion,
)
from mqd.client.errors import ClientError
from mqd.client.security import Security

from .secure_probes import (
    AUTHENTICATION,
    AUTHORIZATION,
    ConfluentOpenProbe,
    LoginProbe,
    MqdOpenProbe,
    MqdReadProbe,
    OpenProbe,
    Probe,
)
from .workload import TrialFailed

PROBED = "secure-probed"
"""The topic of the probes."""
MECHANISM = "SCRAM-SHA-256"
ADMIN, SHOP, ROTATED, REVOKED, DELETED = "admin", "shop", "rotated", "revoked", "deleted"
USERS = (ADMIN, SHOP, ROTATED, REVOKED, DELETED)
EFFECT_S = 5.0
"""An effect occurs within this time."""
REAUTH_MS = 4_000
"""Sessions of clients last this long. Then they log in again, with the password that they have."""
WAIT_S = 30.0
"""Wait this long for an effect, to report how late it is."""
_POLL_S = 0.02


@dataclass(frozen=True)
class Effect:
    """What a change caused, and after how many seconds. None: never."""

    name: str
    seconds: float | None
    limit: float

    @property
    def is_late(self) -> bool:
        return self.seconds is None or self.seconds > self.limit

    def __str__(self) -> str:
        shown = "never" if self.seconds is None else f"{self.seconds:.2f} s"
        return f"{self.name:80}{shown:>8} (limit {self.limit:g} s)"


def worst_effect(name: str, seconds: Iterable[float | None], limit: float = EFFECT_S) -> Effect:
    """The effect that took the longest of several."""
    found = list(seconds)
    known = [each for each in found if each is not None]
    return Effect(name, max(known) if len(known) == len(found) else None, limit)


def check_results(results: dict[Any, Any]) -> None:
    """Raises the first error of an administrative call."""
    for result in results.values():
        if isinstance(result, ClientError):
            raise result


def needed_acls(topics_prefix: str, groups_prefix: str) -> list[Acl]:
    """What the users of the load and of the probes need."""
    topic, allow = AclResourceType.TOPIC, AclPermission.ALLOW
    read, write = AclOperation.READ, AclOperation.WRITE
    shop, prefixed = f"User:{SHOP}", PatternType.PREFIXED
    acls = [Acl(topic, topics_prefix, prefixed, shop, "*", each, allow) for each in (read, write)]
    acls.append(Acl(AclResourceType.GROUP, groups_prefix, prefixed, shop, "*", read, allow))
    acls += [
        Acl(topic, PROBED, PatternType.LITERAL, f"User:{user}", "*", operation, allow)
        for user in (ROTATED, REVOKED, DELETED)
        for operation in (read, write)
    ]
    return acls


@dataclass
class AccessChange:
    """The probes and the changes. `security_of(user)`: the security of a client of that user."""

    bootstrap: str
    security_of: Callable[[str], Security]
    violations: list[str] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)

    def __post_init__(self) -> None:
        old, addresses = self.security_of(ROTATED), self.bootstrap.split(",")
        password = secrets.token_urlsafe(18)
        self._new = replace(old, password=password)
        self._rotation = ScramUpsertion(ROTATED, ScramMechanism.SHA_256, password)
        self._old_logins = LoginProbe("logins with the old password", addresses, old)
        self._new_logins = LoginProbe("logins with the new password", addresses, self._new)
        self._deleted_logins = LoginProbe(
            "logins of the deleted user", addresses, self.security_of(DELETED)
        )
        self._switched = self._open(ConfluentOpenProbe, ROTATED, None)
        self._old_sessions = self._open_both(ROTATED, AUTHENTICATION)
        self._deleted_sessions = self._open_both(DELETED, AUTHENTICATION)
        self._revoked = self._open_both(REVOKED, AUTHORIZATION)
        self._revoked.append(self._open(MqdReadProbe, REVOKED, AUTHORIZATION))

    def _open(self, kind: type[OpenProbe], user: str, expected: str | None) -> Any:
        name = f"{kind.__name__} of user {user!r}"
        return kind(name, self.bootstrap, PROBED, self.security_of(user), expected)

    def _open_both(self, user: str, expected: str) -> list[OpenProbe]:
        return [self._open(kind, user, expected) for kind in (MqdOpenProbe, ConfluentOpenProbe)]

    def run(self) -> None:
        """Make the changes, and wait for their effects. Raises TrialFailed and ClientError."""
        before = [self._old_logins, self._deleted_logins, self._switched, *self._revoked]
        probes: list[Probe] = [*before, *self._old_sessions, *self._deleted_sessions]
        for probe in probes:
            probe.start()
        for probe in probes:
            self._wait_until_works(probe)
        opened = self._opened()
        with sync.connect(self.bootstrap, security=self.security_of(ADMIN)) as client:
            rotated_at = time.monotonic()
            check_results(client.admin.alter_user_scram_credentials([self._rotation]))
            assert self._new.password is not None
            self._switched.switch(ROTATED, self._new.password)
            self._new_logins.start()
            revoked_at = time.monotonic()
            check_results(client.admin.delete_acls([AclFilter(principal=f"User:{REVOKED}")]))
            deleted_at = time.monotonic()
            deletion = ScramDeletion(DELETED, ScramMechanism.SHA_256)
            check_results(client.admin.alter_user_scram_credentials([deletion]))
        for logins in (self._old_logins, self._deleted_logins):
            _wait_for(logins.all_refuse)
        for each in (*self._revoked, *self._old_sessions, *self._deleted_sessions):
            _wait_for(each.refusal_time)
        if self._opened() != opened:
            self.violations.append("a client opened other connections after it lost an ACL")
        self._wait_until_works(self._switched, rotated_at + REAUTH_MS / 1000 + EFFECT_S)
        for probe in (*probes, self._new_logins):
            probe.finish()
            self.violations += probe.problems
        self._report(rotated_at, revoked_at, deleted_at)

    def _opened(self) -> list[int]:
        """The number of connections of each client that loses an ACL."""
        return [each.opened for each in self._revoked if isinstance(each, MqdOpenProbe)]

    def _report(self, rotated_at: float, revoked_at: float, deleted_at: float) -> None:
        ends_within = REAUTH_MS / 1000 + EFFECT_S
        self._login_effect("a new login with the old password fails", self._old_logins, rotated_at)
        since = [at for times in self._new_logins.refused.values() for at in times]
        since += self._new_logins.accepted[:1]
        accepted = max(since) - rotated_at if self._new_logins.worked else None
        self.effects.append(
            Effect("a new login with the new password succeeds on every node", accepted, EFFECT_S)
        )
        what = "an open connection with the old password ends"
        self._open_effects(what, self._old_sessions, rotated_at, ends_within)
        if late := [at for at in self._switched.late_refusals if at > rotated_at + EFFECT_S]:
            self.violations.append(
                f"{len(late)} logins of a client that got the new password were refused"
            )
        what = "an open connection gets TOPIC_AUTHORIZATION_FAILED"
        self._open_effects(what, self._revoked, revoked_at, EFFECT_S)
        self._login_effect(
            "a new login of the deleted user fails", self._deleted_logins, deleted_at
        )
        what = "an open connection of the deleted user ends"
        self._open_effects(what, self._deleted_sessions, deleted_at, ends_within)

    def _login_effect(self, name: str, logins: LoginProbe, since: float) -> None:
        """From the change to the start of the last login that a node accepted."""
        is_refused = logins.all_refuse() is not None
        seconds = max(0.0, logins.last_accepted - since) if is_refused else None
        self.effects.append(Effect(name, seconds, EFFECT_S))

    def _open_effects(self, name: str, probes: list[OpenProbe], since: float, limit: float) -> None:
        for probe in probes:
            at = probe.refused_at
            seconds = None if at is None else at - since
            self.effects.append(Effect(f"{name} ({probe.client})", seconds, limit))

    def _wait_until_works(self, probe: Probe, since: float = 0.0) -> None:
        """Wait until a try has succeeded after that time. Raises TrialFailed."""
        deadline = max(time.monotonic(), since) + WAIT_S
        while probe.last_success <= since:
            if probe.problems or time.monotonic() > deadline:
                raise TrialFailed(f"{probe.name}: no success {probe.problems[:1]}")
            time.sleep(_POLL_S)


def _wait_for(condition: Callable[[], float | None]) -> None:
    """Wait until it returns a time, or until WAIT_S have passed."""
    deadline = time.monotonic() + WAIT_S
    while condition() is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)
