"""The tokens of the login fuzzer: a node would check their claims, and accept none."""

from __future__ import annotations

import random
import time

import pytest

from chaos.bearer_tokens import (
    AUDIENCE,
    ISSUER,
    invalid_payload,
    invalid_token,
    key_set,
    valid_token,
)
from mqd.security.mechanism import LoginFailed
from mqd.security.oauthbearer import TokenRules
from mqd.security.tokens import check_token, parse_key_set

KEYS = parse_key_set(key_set().encode())
RULES = TokenRules(audiences=(AUDIENCE,), issuer=ISSUER)
REACHED = (
    *("critical header fields", "an invalid 'alg' or 'kid'", "has no signature", "no key has the"),
    *("no key for the algorithm", "the signature of the token", "the header of the token is not"),
    *("the payload of the token is not", "has no 'exp' or no 'iat'", "the token expired"),
    *("expires before it begins", "valid only in", "the audience of the token", "the issuer of"),
    *("is not a user name", "the claim 'exp' of the token is not a time", "not a signed JSON"),
)


@pytest.mark.slow
def test_every_check_of_a_token_is_reached() -> None:
    now_ms = int(time.time() * 1000)
    assert check_token(valid_token("alice"), KEYS, RULES, now_ms).user == "alice"
    chance = random.Random(1)
    reasons: set[str] = set()
    for number in range(3_000):
        token = invalid_payload(chance) if number % 10 == 0 else invalid_token(chance, "alice")
        with pytest.raises(LoginFailed) as caught:
            check_token(token, KEYS, RULES, now_ms)
        reasons.add(str(caught.value))
    missing = [text for text in REACHED if not any(text in reason for reason in reasons)]
    assert missing == [], reasons
