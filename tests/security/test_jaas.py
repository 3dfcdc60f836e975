"""JAAS strings, read as Kafka reads them."""

from __future__ import annotations

import pytest

from mqd.security.jaas import PLAIN_MODULE, parse_jaas, parse_login_module
from mqd.security.plain import users_of

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
    (f"{PLAIN} a;", "'a' has no value"),
    (f"{PLAIN} a=;", "'a' has no value"),
    (f"{PLAIN} password=12345;", "'password' has no value"),
    (f'{PLAIN} a="s3cret;', "no closing"),
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


def test_several_modules_and_hidden_options() -> None:
    found = parse_jaas(f'{PLAIN} user_alice="s3cret" user_="x" other="y"; a.B OPTIONAL;')
    assert [each.flag for each in found] == ["required", "optional"]
    assert users_of(found[0].options) == {"alice": "s3cret"}
    assert "s3cret" not in repr(found)
