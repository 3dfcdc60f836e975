"""All attacks, by their names.

Those that fill the coordinator and the metadata come last, because their effects remain.
"""

from __future__ import annotations

from tests.hostile.attack import Attack
from tests.hostile.before_login import (
    BigTokens,
    HalfHandshakes,
    HeldLogins,
    KeyUpdates,
    Renegotiations,
    SaslHandshakes,
    ScramFirstMessages,
    WrongPasswords,
)
from tests.hostile.costly import (
    KnownSessions,
    Lookups,
    ManyBatches,
    OnePartition,
    Recompressions,
    UnknownSessions,
)
from tests.hostile.floods import GroupConfigs, Groups, ManyProtocols, Topics, WaitingMembers
from tests.hostile.held import Connections, HalfFrames, SlowReaders, SmallHalfFrames, Strangers
from tests.hostile.malformed import Malformed
from tests.hostile.relays import DelayedZeros, Schedules, Tombstones
from tests.hostile.share import ShareAcknowledgements, ShareSessions, WaitingShareFetches
from tests.hostile.share_states import ImpossibleStates, LargeStates, NamedShareGroup

_COSTLY = (
    UnknownSessions,
    KnownSessions,
    OnePartition,
    ManyBatches,
    Lookups,
    Recompressions,
)
_HELD = (Connections, HalfFrames, SmallHalfFrames, SlowReaders, Strangers)
_SHARE = (
    *(ShareSessions, ShareAcknowledgements, WaitingShareFetches),
    *(ImpossibleStates, LargeStates, NamedShareGroup),
)
_RELAYS = (DelayedZeros, Schedules, Tombstones)
_FLOODS = (ManyProtocols, WaitingMembers, Groups, GroupConfigs, Topics)

ATTACKS: dict[str, type[Attack]] = {
    kind.name: kind for kind in (*_COSTLY, *_HELD, Malformed, *_SHARE, *_RELAYS, *_FLOODS)
}

BEFORE_LOGIN: dict[str, type[Attack]] = {
    kind.name: kind
    for kind in (
        *(HalfHandshakes, HeldLogins, SaslHandshakes, ScramFirstMessages, WrongPasswords),
        *(BigTokens, KeyUpdates, Renegotiations),
    )
}
"""Attacks of clients that have not logged in, on a listener with TLS and logins."""

EVERY_ATTACK = {**ATTACKS, **BEFORE_LOGIN}
