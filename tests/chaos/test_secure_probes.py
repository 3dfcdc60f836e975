"""What the probes of chaos/secure_rolling.py conclude from what they see."""

from __future__ import annotations

import confluent_kafka

from chaos.client_security import PLAINTEXT
from chaos.history import Reads
from chaos.secure_access import Effect, worst_effect
from chaos.secure_clients import GroupReads
from chaos.secure_probes import AUTHORIZATION, LoginProbe, MqdOpenProbe
from chaos.workload import VALUE, is_refusal

KEY = ("secure", 0)


def test_every_node_must_refuse_after_the_last_accepted_login() -> None:
    probe = LoginProbe("logins", ["a", "b"], PLAINTEXT)
    probe.accepted = [1.0]
    probe.refused = {"a": [2.0], "b": []}
    assert probe.all_refuse() is None
    probe.refused["b"] = [3.0]
    assert probe.all_refuse() == 3.0
    probe.accepted.append(2.5)  # a node that does not know the change yet
    assert probe.all_refuse() is None
    probe.refused["a"].append(4.0)
    assert probe.all_refuse() == 4.0


def test_an_effect_that_never_occurs_is_late() -> None:
    assert Effect("login", None, 5.0).is_late
    assert Effect("login", 5.1, 5.0).is_late
    assert not Effect("login", 4.9, 5.0).is_late
    assert worst_effect("login", [1.0, None]).is_late
    assert worst_effect("login", [1.0, 3.0]).seconds == 3.0


def test_only_the_expected_error_is_no_problem() -> None:
    probe = MqdOpenProbe("producer", "a:1", "t", PLAINTEXT, AUTHORIZATION)
    probe.refuse(None, "timed out")
    assert probe.problems == ["producer: timed out"]
    other = MqdOpenProbe("producer", "a:1", "t", PLAINTEXT, AUTHORIZATION)
    other.refuse(AUTHORIZATION, "not authorized")
    other.refuse(None, "closed")
    assert other.problems == []
    assert other.error == "not authorized"


def test_a_group_counts_repeated_records_and_keeps_gaps() -> None:
    found = GroupReads([KEY])
    for offset in (0, 1, 1, 3):
        found.add(KEY, offset, VALUE.pack(offset))
    assert list(found.reads[KEY].offsets) == [0, 1, 3]
    assert found.repeated == 1
    final = {KEY: Reads()}
    assert found.has(final)
    for offset in range(5):
        final[KEY].add(offset, offset)
    assert not found.has(final)
    found.add(KEY, 4, VALUE.pack(4))
    assert found.has(final)


def test_a_broker_that_ends_during_a_login_refuses_nobody() -> None:
    kind = confluent_kafka.KafkaError
    assert is_refusal(kind(kind._AUTHENTICATION, "SASL authentication error: wrong password"))
    assert not is_refusal(kind(kind._SSL, "SSL handshake failed: Disconnected"))
    assert not is_refusal(kind(kind._TRANSPORT, "connection refused"))
