"""Client quotas: which one applies to a client, how much the client has used, and how long to
throttle it (KIP-13, KIP-55, KIP-219, KIP-599, KIP-612). A core.

The most specific quota of a client applies, in Kafka's order:

    user and client id               user and default client id           user
    default user and client id       default user and default client id   default user
    client id                        default client id

Clients share one quota state if the same quota applies to them by the same names. All connections
of user `alice` share the state of her quota. The default quota of users counts each user
separately.

Rates are measured over the last samples, as Kafka does it: `quota.window.num` samples of
`quota.window.size.seconds`. The length of the measured time is at least that of all samples but
one, so a client that was idle may send a burst.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from math import isinf
from types import MappingProxyType
from typing import Final, Generic, NamedTuple, TypeVar

from mqd.security.authorizer import canonical_host
from mqd.security.principal import Principal

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

CLIENT_KEYS: Final = (
    *(PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE),
    CONTROLLER_MUTATION_RATE,
)
"""The keys of users and client ids."""
ADDRESS_KEYS: Final = (CONNECTION_CREATION_RATE,)

USER_ENTITY: Final = "user"
CLIENT_ENTITY: Final = "client-id"
IP_ENTITY: Final = "ip"

QuotaEntity = tuple[tuple[str, str | None], ...]
"""Whom a quota limits: pairs of entity type ("user", "client-id" or "ip") and name, sorted by type.
A name of None is the default of its type. Example: `(("client-id", None), ("user", "alice"))`.
"""
QuotaKey = tuple[str, str | None, str | None]
"""What a quota state counts: the name of the quota, the user and the client id. None: all."""

QUOTA_STATES_MAX: Final = 10_000
"""Quota states of each kind that a node keeps. Beyond it, the least recently used one is evicted: a
client chooses its client id, and could otherwise fill the memory."""
RESOLVED_MAX: Final = 10_000
THROTTLE_MS_MAX: Final = 2**31 - 1
"""Maximum of `throttle_time_ms`. A quota near 0 would need more, up to infinity."""

StateT = TypeVar("StateT")


class Quota(NamedTuple):
    """The quota that applies to a client."""

    counted_by: QuotaKey
    limit: float
    """Per second: bytes, mutations, or percent of one core."""


class QuotaTable:
    """The quotas in the metadata, by entity."""

    def __init__(
        self, quotas: Mapping[QuotaEntity, Mapping[str, float]] = MappingProxyType({})
    ) -> None:
        self.keys: frozenset[str] = frozenset()
        """The keys that any entity has. A client has no quota of another key."""
        self._quotas: dict[QuotaEntity, Mapping[str, float]] = {}
        self._counts: Counter[str] = Counter()
        """How many entities have each key."""
        self._resolved: dict[tuple[str, str, str], Quota | None] = {}
        self._of_addresses: dict[str, dict[QuotaEntity, Mapping[str, float]]] = {}
        """By the address in one spelling: `0:0:0:0:0:0:0:1` is `::1`. Of several spellings, the
        largest text applies, on every node.
        """
        for entity, limits in quotas.items():
            self.change(entity, limits)

    def change(self, entity: QuotaEntity, limits: Mapping[str, float] | None) -> None:
        """Set the quotas of an entity, or remove them. The cost does not depend on the others."""
        self._counts.subtract(self._quotas.pop(entity, {}).keys())
        if limits:
            self._quotas[entity] = limits
            self._counts.update(limits.keys())
        self.keys = frozenset(+self._counts)
        if self._resolved:
            self._resolved = {}
        kind, name = entity[0]
        if kind == IP_ENTITY and name is not None:
            spellings = self._of_addresses.setdefault(canonical_host(name), {})
            spellings.pop(entity, None)
            if limits:
                spellings[entity] = limits
            elif not spellings:
                del self._of_addresses[canonical_host(name)]

    def quota_of(self, key: str, user: str, client_id: str) -> Quota | None:
        """The quota of a client. None: there is none."""
        if key not in self.keys:
            return None
        name = (key, user, client_id)
        try:
            return self._resolved[name]
        except KeyError:
            if len(self._resolved) >= RESOLVED_MAX:
                self._resolved.clear()
            found = self._resolved[name] = self._find(key, user, client_id)
            return found

    def _find(self, key: str, user: str, client_id: str) -> Quota | None:
        for of_user in (user, None):
            for of_client in (client_id, None):
                limit = self._limit(key, ((CLIENT_ENTITY, of_client), (USER_ENTITY, of_user)))
                if limit is not None:
                    return Quota((key, user, client_id), limit)
            limit = self._limit(key, ((USER_ENTITY, of_user),))
            if limit is not None:
                return Quota((key, user, None), limit)
        for of_client in (client_id, None):
            limit = self._limit(key, ((CLIENT_ENTITY, of_client),))
            if limit is not None:
                return Quota((key, None, client_id), limit)
        return None

    def limit_of_address(self, address: str) -> float | None:
        """New connections per second from an address. None: no quota."""
        if CONNECTION_CREATION_RATE not in self.keys:
            return None
        spellings = self._of_addresses.get(canonical_host(address))
        limits = {} if spellings is None else spellings[max(spellings)]
        limit = limits.get(CONNECTION_CREATION_RATE)
        return (
            limit
            if limit is not None
            else self._limit(CONNECTION_CREATION_RATE, ((IP_ENTITY, None),))
        )

    def _limit(self, key: str, entity: QuotaEntity) -> float | None:
        limits = self._quotas.get(entity)
        return limits.get(key) if limits is not None else None


class Window(NamedTuple):
    """How a rate is measured."""

    samples: int = 11
    sample_ms: float = 1000.0


class Rate:
    """A rate over the last samples, like Kafka's `Rate` of a `SampledStat`."""

    __slots__ = ("_samples", "_window")

    def __init__(self, window: Window) -> None:
        self._window = window
        self._samples: deque[list[float]] = deque()
        """Pairs of start (ms) and sum, oldest first."""

    def record(self, amount: float, now_ms: float) -> None:
        """Count `amount` at `now_ms` (monotonic milliseconds)."""
        samples, window = self._samples, self._window
        if not samples or now_ms - samples[-1][0] >= window.sample_ms:
            samples.append([now_ms, 0.0])
            if len(samples) > window.samples:
                samples.popleft()
        samples[-1][1] += amount

    def measure(self, now_ms: float) -> tuple[float, float]:
        """The amount per second, and the length of the measured time in milliseconds."""
        samples, window = self._samples, self._window
        while samples and now_ms - samples[0][0] >= window.samples * window.sample_ms:
            samples.popleft()
        elapsed_ms = now_ms - samples[0][0] if samples else 0.0
        full = int(elapsed_ms // window.sample_ms)
        if full < window.samples - 1:
            elapsed_ms += (window.samples - 1 - full) * window.sample_ms
        total = sum(amount for _, amount in samples)
        return total / max(elapsed_ms, window.sample_ms) * 1000, elapsed_ms


class TokenBucket:
    """Tokens that fill up at the quota's rate; a burst takes those of a whole window (KIP-599).

    The count may become negative: a request that begins with tokens is carried out whole.
    """

    __slots__ = ("_tokens", "_updated_ms")

    def __init__(self, limit: float, window: Window, now_ms: float) -> None:
        self._tokens = self._burst(limit, window)
        self._updated_ms = now_ms

    @staticmethod
    def _burst(limit: float, window: Window) -> float:
        return limit * window.samples * window.sample_ms / 1000

    def refill(self, limit: float, window: Window, now_ms: float) -> float:
        """The tokens at `now_ms`."""
        elapsed_ms = max(0.0, now_ms - self._updated_ms)
        added = limit * elapsed_ms / 1000 if elapsed_ms else 0.0  # an infinite quota times 0 is NaN
        self._tokens = min(self._tokens + added, self._burst(limit, window))
        self._updated_ms = now_ms
        return self._tokens

    def take(self, tokens: float) -> None:
        self._tokens -= tokens

    def throttle_ms(self, limit: float) -> int:
        """How long until the count is no longer negative. Call `refill` first."""
        if self._tokens >= 0:
            return 0
        return _milliseconds(-self._tokens / limit * 1000) if limit > 0 else 60_000


class ClientQuotas:
    """The use of all clients of one node."""

    def __init__(self, window: Window, mutation_window: Window) -> None:
        """`window`: of byte rates and of request time; `mutation_window`: of mutations."""
        self._window = window
        self._mutation_window = mutation_window
        self._rates: _States[Rate] = _States()
        self._buckets: _States[TokenBucket] = _States()
        self.table = QuotaTable()

    def __len__(self) -> int:
        return len(self._rates) + len(self._buckets)

    def record(
        self, key: str, principal: Principal, client_id: str, amount: float, now_ms: float
    ) -> int:
        """Count the use of a client. Returns for how many milliseconds to throttle it: until its
        rate would be at its quota if it used no more.
        """
        quota = self.table.quota_of(key, principal.name, client_id)
        if quota is None:
            return 0
        rate = self._rate_of(quota.counted_by)
        rate.record(amount, now_ms)
        return self._throttle_ms(key, quota, rate, now_ms)

    def unrecord(
        self, key: str, principal: Principal, client_id: str, amount: float, now_ms: float
    ) -> None:
        """Undo `record`: the response was throttled and has no records."""
        quota = self.table.quota_of(key, principal.name, client_id)
        if quota is not None:
            self._rate_of(quota.counted_by).record(-amount, now_ms)

    def _throttle_ms(self, key: str, quota: Quota, rate: Rate, now_ms: float) -> int:
        measured, elapsed_ms = rate.measure(now_ms)
        if measured <= quota.limit:
            return 0
        limit_ms = self._window.sample_ms if key == REQUEST_PERCENTAGE else float("inf")
        if quota.limit <= 0:
            return _milliseconds(min(limit_ms, self._window.samples * self._window.sample_ms))
        return _milliseconds(min(limit_ms, (measured - quota.limit) / quota.limit * elapsed_ms))

    def _rate_of(self, key: QuotaKey) -> Rate:
        return self._rates.of(key, lambda: Rate(self._window))

    def mutate(
        self, principal: Principal, client_id: str, mutations: int, now_ms: float, *, strict: bool
    ) -> tuple[bool, int]:
        """Take tokens for `mutations` of the metadata. Returns whether they are allowed, and for
        how many milliseconds to throttle the client. `strict`: without tokens they are refused
        (THROTTLING_QUOTA_EXCEEDED), as recent versions of the APIs expect. Otherwise they are
        always allowed.
        """
        quota = self.table.quota_of(CONTROLLER_MUTATION_RATE, principal.name, client_id)
        if quota is None or isinf(quota.limit):
            return True, 0
        window = self._mutation_window
        bucket = self._bucket_of(quota.counted_by, quota.limit, window, now_ms)
        tokens = bucket.refill(quota.limit, window, now_ms)
        is_allowed = tokens >= 0 or not strict
        if is_allowed:
            bucket.take(mutations)
        return is_allowed, bucket.throttle_ms(quota.limit)

    def connect(self, address: str, now_ms: float) -> bool:
        """Count a new connection from an address. Returns whether its quota allows it."""
        limit = self.table.limit_of_address(address)
        if limit is None:
            return True
        name = (CONNECTION_CREATION_RATE, address, None)
        bucket = self._bucket_of(name, limit, self._window, now_ms)
        is_allowed = bucket.refill(limit, self._window, now_ms) >= 1
        if is_allowed:
            bucket.take(1)
        return is_allowed

    def _bucket_of(self, key: QuotaKey, limit: float, window: Window, now_ms: float) -> TokenBucket:
        return self._buckets.of(key, lambda: TokenBucket(limit, window, now_ms))


def _milliseconds(time_ms: float) -> int:
    return round(min(time_ms, THROTTLE_MS_MAX))


class _States(Generic[StateT]):
    """Quota states of three kinds: of addresses, of users, and of client ids. Each kind has a bound
    of its own, so a user who sends many client ids does not evict the state of the own quota.
    """

    def __init__(self) -> None:
        self._of_addresses: OrderedDict[QuotaKey, StateT] = OrderedDict()
        self._of_users: OrderedDict[QuotaKey, StateT] = OrderedDict()
        self._of_client_ids: OrderedDict[QuotaKey, StateT] = OrderedDict()

    def __len__(self) -> int:
        return len(self._of_addresses) + len(self._of_users) + len(self._of_client_ids)

    def of(self, key: QuotaKey, new: Callable[[], StateT]) -> StateT:
        """Return the state of `key`, or a new one, and mark it as most recently used."""
        name, _, client_id = key
        if client_id is not None:
            states = self._of_client_ids
        else:
            states = self._of_addresses if name in ADDRESS_KEYS else self._of_users
        state = states.get(key)
        if state is None:
            state = states[key] = new()
            if len(states) > QUOTA_STATES_MAX:
                states.popitem(last=False)
        else:
            states.move_to_end(key)
        return state
