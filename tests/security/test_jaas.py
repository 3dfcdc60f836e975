"""JAAS strings, read as Kafka reads them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings, strategies as st

from mqd.client import InvalidValue
from mqd.client.client_properties import security_of
from mqd.config import ConfigError, NodeConfig
from mqd.config_file import parse_properties
from mqd.security.jaas import PLAIN_MODULE, parse_jaas, parse_login_module
from mqd.security.plain import users_of
from mqd.security.sasl_options import sasl_options

PLAIN = f"{PLAIN_MODULE} required"


OPTIONS: list[tuple[str, dict[str, str]]] = [
    ("", {}),
    ('username="alice" password="a b"', {"username": "alice", "password": "a b"}),
    ("username=alice\n  password = 'it\"s' ", {"username": "alice", "password": 'it"s'}),
    (r'p="a\"b\\c\n\t\101\0601\q"', {"p": 'a"b\\c\n\tA01q'}),
    (r'p="\400\377\18"', {"p": " 0\xff\x018"}),
    ('p="; required = // no comment"', {"p": "; required = // no comment"}),
    ('a="1" // the rest b="2"\n c="3" /* d="4"\n*/ e="5"', {"a": "1", "c": "3", "e": "5"}),
    ("a-b_c$=x.y-1 é=ü", {"a-b_c$": "x.y-1", "é": "ü"}),
    ('empty=""', {"empty": ""}),
]


def test_options_of_a_login_module() -> None:
    for options, expected in OPTIONS:
        found = parse_login_module(f"{PLAIN} {options};")
        assert (found.name, found.flag) == (PLAIN_MODULE, "required")
        assert found.short_name == "PlainLoginModule"
        assert found.options == expected, options


INVALID = [
    ("", "no login module"),
    ("// nothing", "no login module"),
    (PLAIN_MODULE, "no control flag"),
    (f"{PLAIN_MODULE} needed;", "no control flag"),
    (f'{PLAIN} a="s3cret"', "does not end with ';'"),
    ("M required a;", "option at character 12 has no value"),
    ("M required a=;", "option at character 12 has no value"),
    ('M required a="b" password=12345;', "option at character 18 has no value"),
    ("M required a=my s3cret;", "option at character 17 has no value"),
    ('M required a="s3cret;', "string at character 14 has no closing"),
    (f'{PLAIN} a="s3cret\n";', "no closing"),
    (f'{PLAIN} a="s3cret" a="s3cret";', "given twice"),
    ('= required a="s3cret";', "expected a login module"),
    (f"{PLAIN}; {PLAIN};", "2 login modules"),
]


def test_invalid_text_is_refused_without_its_passwords() -> None:
    for text, reason in INVALID:
        with pytest.raises(ValueError, match=reason) as caught:
            parse_login_module(text)
        assert "s3cret" not in str(caught.value)


_QUOTES = (('"', '"'), ("'", "'"), ('"', ""), ("", ""), ("", '"'), ('"', "'"))


@st.composite
def damaged_texts(draw: st.DrawFn) -> tuple[list[str], str]:
    """Values, and a JAAS string with them that is badly quoted, or damaged."""
    # no letter that messages have, so that a leak is not a coincidence
    values = draw(st.lists(st.text("QXZJK\"'\\\\;= /u", min_size=4), min_size=1, max_size=3))
    parts = [PLAIN]
    for number, value in enumerate(values):
        begin, end = draw(st.sampled_from(_QUOTES))
        parts.append(f"user_{number}={begin}{value}{end}")
    text = " ".join(parts) + draw(st.sampled_from([";", ""]))
    for _ in range(draw(st.integers(0, 3))):
        position = draw(st.integers(len(PLAIN), len(text)))
        text = (
            text[:position] + draw(st.sampled_from(["", "=", ";", '"', "'"])) + text[position + 1 :]
        )
    return values, text


def _problem(read: Callable[[], object]) -> str:
    try:
        read()
    except InvalidValue as error:
        return f"{error} {error.remedy}"
    except (ValueError, ConfigError) as error:
        return str(error)
    return ""


@given(damaged_texts())
@settings(max_examples=300)
def test_no_message_contains_a_part_of_a_value(damaged: tuple[list[str], str]) -> None:
    values, text = damaged
    key = "listener.name.x.plain.sasl.jaas.config"
    mechanisms = {"sasl.enabled.mechanisms": "PLAIN"}
    protocol = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
    messages = [
        _problem(lambda: parse_login_module(text)),
        _problem(lambda: sasl_options(NodeConfig.load(None, {}, {**mechanisms, key: text}), "X")),
        _problem(lambda: security_of({**protocol, "sasl.jaas.config": text})),
        _problem(lambda: parse_properties(f"{key}={text}", "a.properties")),
    ]
    for value in values:
        for part in (value[start : start + 4] for start in range(len(value) - 3)):
            if part.strip(" '\"=;"):  # else it is punctuation of the message
                assert not any(part in message for message in messages), (part, messages)


def test_several_modules_and_hidden_options() -> None:
    found = parse_jaas(f'{PLAIN} user_alice="s3cret" user_="x" other="y"; a.B OPTIONAL;')
    assert [each.flag for each in found] == ["required", "optional"]
    assert users_of(found[0].options) == {"alice": "s3cret"}
    assert "s3cret" not in repr(found)
