"""Quotas of clients: which applies, and for how long a client is throttled."""

from __future__ import annotations

import math

import pytest

from mqd.security import quotas
from mqd.security.principal import Principal
from mqd.security.quotas import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    QUOTA_STATES_MAX,
    REQUEST_PERCENTAGE,
    THROTTLE_MS_MAX,
    ClientQuotas,
    QuotaEntity,
    QuotaTable,
    Rate,
    Window,
)

ALICE = Principal("User", "alice")
WINDOW = Window(11, 1000)


def entity(user: str | None = "-", client: str | None = "-") -> QuotaEntity:
    """`-`: not part of the entity."""
    pairs = (("client-id", client), ("user", user))
    return tuple((type_, name) for type_, name in pairs if name != "-")


MOST_SPECIFIC_FIRST = [
    (entity("alice", "app"), ("alice", "app")),
    (entity("alice", None), ("alice", "app")),
    (entity("alice"), ("alice", None)),
    (entity(None, "app"), ("alice", "app")),
    (entity(None, None), ("alice", "app")),
    (entity(None), ("alice", None)),
    (entity(client="app"), (None, "app")),
    (entity(client=None), (None, "app")),
]


@pytest.mark.parametrize("first", range(len(MOST_SPECIFIC_FIRST)))
def test_the_most_specific_quota_applies(first: int) -> None:
    table = QuotaTable(
        {
            one: {PRODUCER_BYTE_RATE: float(position)}
            for position, (one, _) in enumerate(MOST_SPECIFIC_FIRST)
            if position >= first
        }
    )
    quota = table.quota_of(PRODUCER_BYTE_RATE, "alice", "app")
    assert quota is not None
    assert quota.limit == first
    assert quota.counted_by == (PRODUCER_BYTE_RATE, *MOST_SPECIFIC_FIRST[first][1])
    assert table.quota_of(CONSUMER_BYTE_RATE, "alice", "app") is None


def test_the_quota_of_an_address() -> None:
    table = QuotaTable(
        {
            (("ip", "10.0.0.1"),): {quotas.CONNECTION_CREATION_RATE: 3.0},
            (("ip", "2001:DB8:0:0:0:0:0:1"),): {quotas.CONNECTION_CREATION_RATE: 5.0},
            (("ip", None),): {quotas.CONNECTION_CREATION_RATE: 7.0},
        }
    )
    assert (table.limit_of_address("10.0.0.1"), table.limit_of_address("10.0.0.2")) == (3.0, 7.0)
    assert (table.limit_of_address("2001:db8::1"), table.limit_of_address("::1")) == (5.0, 7.0)
    assert table.limit_of_address("::ffff:10.0.0.1") == 3.0
    assert QuotaTable({}).limit_of_address("10.0.0.1") is None


def test_a_rate_is_measured_over_at_least_ten_samples() -> None:
    rate = Rate(WINDOW)
    rate.record(1000, 0)
    assert rate.measure(0) == (100.0, 10_000)
    rate.record(1000, 5_000)
    assert rate.measure(5_500) == pytest.approx((2000 / 10.5, 10_500))
    assert rate.measure(11_000) == (100.0, 10_000), "the first sample is too old"
    assert rate.measure(20_000)[0] == 0


def client_quotas(**limits: float) -> ClientQuotas:
    found = ClientQuotas(WINDOW, WINDOW)
    found.table = QuotaTable({entity("alice"): limits})
    return found


def test_a_client_is_throttled_to_its_quota() -> None:
    """A producer that waits for each throttle time sends 1,000 B/s in the long run."""
    node = client_quotas(producer_byte_rate=1000.0)
    now, sent = 0.0, 0
    while now < 100_000:
        sent += 500
        now += 1 + node.record(PRODUCER_BYTE_RATE, ALICE, "app", 500, now)
    assert 1000 <= sent / 100 <= 1120, "the burst of the first window is allowed"
    assert node.record(CONSUMER_BYTE_RATE, ALICE, "app", 1e9, now) == 0
    assert node.record(PRODUCER_BYTE_RATE, Principal("User", "bob"), "app", 1e9, now) == 0


def test_bytes_that_were_not_sent_do_not_count() -> None:
    node = client_quotas(consumer_byte_rate=1000.0)
    assert node.record(CONSUMER_BYTE_RATE, ALICE, "app", 20_000, 0) == 10_000
    node.unrecord(CONSUMER_BYTE_RATE, ALICE, "app", 20_000, 0)
    assert node.record(CONSUMER_BYTE_RATE, ALICE, "app", 1, 0) == 0


def test_request_time_is_throttled_for_one_sample_at_most() -> None:
    node = client_quotas(request_percentage=1.0)
    assert node.record(REQUEST_PERCENTAGE, ALICE, "app", 100_000, 0) == 1000


def test_a_quota_of_zero_throttles_for_a_whole_window() -> None:
    node = client_quotas(producer_byte_rate=0.0)
    assert node.record(PRODUCER_BYTE_RATE, ALICE, "app", 1, 0) == 11_000


def test_mutations_take_tokens_and_may_exceed_them_once() -> None:
    node = client_quotas(controller_mutation_rate=2.0)
    assert node.mutate(ALICE, "app", 30, 0, strict=True) == (True, 4000)
    assert node.mutate(ALICE, "app", 1, 0, strict=True) == (False, 4000)
    assert node.mutate(ALICE, "app", 1, 0, strict=False) == (True, 4500)
    assert node.mutate(ALICE, "app", 1, 4500, strict=True) == (True, 500)
    assert node.mutate(Principal("User", "bob"), "app", 10**6, 0, strict=True) == (True, 0)


@pytest.mark.parametrize("limit", [5e-324, 1e-300])
def test_a_quota_near_zero_has_a_finite_throttle_time(limit: float) -> None:
    node = client_quotas(producer_byte_rate=limit, controller_mutation_rate=limit)
    assert node.record(PRODUCER_BYTE_RATE, ALICE, "app", 1, 0) == 2**31 - 1
    assert node.mutate(ALICE, "app", 1, 0, strict=True) == (True, 2**31 - 1)


def test_an_infinite_quota_is_none() -> None:
    node = client_quotas(controller_mutation_rate=math.inf, request_percentage=math.inf)
    for _ in range(2):
        assert node.mutate(ALICE, "app", 10**6, 0, strict=True) == (True, 0)
        assert node.record(REQUEST_PERCENTAGE, ALICE, "app", 10**6, 0) == 0


def test_an_address_may_connect_as_often_as_its_quota_allows() -> None:
    node = ClientQuotas(Window(1, 1000), WINDOW)
    node.table = QuotaTable({(("ip", "10.0.0.1"),): {quotas.CONNECTION_CREATION_RATE: 2.0}})
    found = [node.connect("10.0.0.1", now_ms) for now_ms in (0, 0, 0, 400, 500, 600)]
    assert found == [True, True, False, False, True, False]
    assert all(node.connect("10.0.0.2", 0) for _ in range(100))


def test_the_number_of_quota_states_is_bounded() -> None:
    """A client may choose a new client id for each request."""
    node = ClientQuotas(WINDOW, WINDOW)
    limits = {PRODUCER_BYTE_RATE: 1.0, CONTROLLER_MUTATION_RATE: 1.0}
    node.table = QuotaTable({entity(client=None): limits})
    for number in range(QUOTA_STATES_MAX + 100):
        node.record(PRODUCER_BYTE_RATE, ALICE, f"app-{number}", 1, 0)
        node.mutate(ALICE, f"app-{number}", 1, 0, strict=True)
    assert len(node) == 2 * QUOTA_STATES_MAX


@pytest.mark.parametrize("limit", [5e-324, 1e-300, 1e-7])
def test_the_time_for_a_tiny_quota_is_bounded(limit: float) -> None:
    counted = ClientQuotas(WINDOW, WINDOW)
    keys = (PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
    counted.table = QuotaTable({entity("alice"): dict.fromkeys(keys, limit)})
    assert counted.record(PRODUCER_BYTE_RATE, ALICE, "app", 1e6, 0.0) == THROTTLE_MS_MAX
    assert counted.record(REQUEST_PERCENTAGE, ALICE, "app", 1e6, 0.0) == 1000
    counted.mutate(ALICE, "app", 10_000, 0.0, strict=False)
    assert counted.mutate(ALICE, "app", 1, 0.0, strict=True) == (False, THROTTLE_MS_MAX)


@pytest.mark.parametrize("limit", [float("inf"), 1e308])
def test_an_infinite_quota_throttles_nobody(limit: float) -> None:
    counted = ClientQuotas(WINDOW, WINDOW)
    keys = (REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
    counted.table = QuotaTable({entity("alice"): dict.fromkeys(keys, limit)})
    for now in (0.0, 0.0, 1000.0):
        assert counted.record(REQUEST_PERCENTAGE, ALICE, "app", 1e6, now) == 0
        assert counted.mutate(ALICE, "app", 10_000, now, strict=True) == (True, 0)


def test_a_change_costs_nothing_for_other_quotas(monkeypatch: pytest.MonkeyPatch) -> None:
    table = QuotaTable(
        {(("ip", f"10.0.0.{n}"),): {CONNECTION_CREATION_RATE: 1.0} for n in range(9)}
    )
    spelled: list[str] = []

    def canonical_host(host: str) -> str:
        spelled.append(host)
        return host

    monkeypatch.setattr(quotas, "canonical_host", canonical_host)
    table.change((("ip", "10.0.0.3"),), {CONNECTION_CREATION_RATE: 2.0})
    assert set(spelled) == {"10.0.0.3"}
    assert table.limit_of_address("10.0.0.3") == 2.0
    table.change((("ip", "10.0.0.3"),), None)
    assert table.limit_of_address("10.0.0.3") is None
    assert table.keys == {CONNECTION_CREATION_RATE}
    for n in range(9):
        table.change((("ip", f"10.0.0.{n}"),), None)
    assert table.keys == frozenset()


def test_a_user_keeps_the_state_of_a_quota_whatever_client_ids_the_user_sends() -> None:
    node = ClientQuotas(WINDOW, WINDOW)
    of_user = {PRODUCER_BYTE_RATE: 1.0, CONTROLLER_MUTATION_RATE: 1.0}
    node.table = QuotaTable(
        {entity("alice"): of_user, entity(client=None): {REQUEST_PERCENTAGE: 100.0}}
    )
    throttle_ms = node.record(PRODUCER_BYTE_RATE, ALICE, "app", 1000, 0)
    node.mutate(ALICE, "app", 100, 0, strict=True)
    for number in range(QUOTA_STATES_MAX + 100):
        node.record(REQUEST_PERCENTAGE, ALICE, f"app-{number}", 0.001, 0)
        node.connect(f"10.0.{number // 256}.{number % 256}", 0)
    assert node.record(PRODUCER_BYTE_RATE, ALICE, "app", 0, 0) == throttle_ms > 0
    assert node.mutate(ALICE, "app", 1, 0, strict=True)[0] is False
