"""Principals as Kafka writes them."""

from __future__ import annotations

import pytest

from mqd.security.principal import ANONYMOUS, Principal, parse_principal


def test_a_principal_has_a_type_and_a_name() -> None:
    assert parse_principal("User:ANONYMOUS") == ANONYMOUS
    assert parse_principal("User:CN=a:b,O=c") == Principal("User", "CN=a:b,O=c")
    assert str(Principal("User", "alice")) == "User:alice"


@pytest.mark.parametrize("text", ["", "alice", ":alice"])
def test_a_text_without_a_type_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="User:NAME"):
        parse_principal(text)
