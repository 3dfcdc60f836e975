"""The expected names are those of Kafka's SslPrincipalMapperTest, and of Java's X500Principal."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta

import pytest

from mqd.config import ConfigError
from mqd.io.certificates import Authority
from mqd.security.distinguished_name import alternative_names, expires_at, subject_of
from mqd.security.principal import ANONYMOUS
from mqd.security.principal_mapping import PrincipalMapping
from tests.tls_files import texts

KAFKAS_RULES = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,"
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L, "
    "RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U,"
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, "
    "DEFAULT"
)


@pytest.mark.parametrize(
    ("rules", "name", "expected"),
    [
        ("DEFAULT", "CN=a,OU=b", "CN=a,OU=b"),
        (KAFKAS_RULES, "CN=duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        (KAFKAS_RULES, "CN=duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        (KAFKAS_RULES, "cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        (KAFKAS_RULES, "OU=JavaSoft,O=Sun Microsystems,CN=duke", "DUKE"),
        (KAFKAS_RULES, "OU=JavaSoft", "OU=JavaSoft"),
        ("RULE:^CN=([^,]+),.*$/\\$$1$9/", "CN=a,O=b", "$a$9"),
        (r"RULE:^CN=(\p{Alpha}+).*$/$1/L,DEFAULT", "CN=Alice,O=b", "alice"),
        (r"RULE:^CN=(\p{Alpha}+).*$/$1/L,DEFAULT", "CN=1,O=b", "CN=1,O=b"),
        ("RULE:^CN=(?<name>[a-z]+).*$/${name}-$1/,DEFAULT", "CN=alice,O=b", "alice-alice"),
        ("RULE:CN=(.)(.*)/$12/", "CN=ab", "a2"),
        ("RULE:(.*)/$1@x/", "CN=a", "CN=a@x@x"),
        ("RULE:.*?/-/", "CN", "-C-N-"),
        ("RULE:^CN=(.*?)\\/x.*$/$1/,DEFAULT", "CN=a/x", "a"),
    ],
)
def test_the_first_matching_rule_gives_the_name(rules: str, name: str, expected: str) -> None:
    assert PrincipalMapping(rules).short_name(name) == expected


@pytest.mark.parametrize(
    "rules",
    [
        *("default", "DEFAUL", "RULE:", "RULE:CN=(.*)/$1", "RULE:(/a/", "DEFAULT x"),
        *("RULE:(.*)/$x/", "RULE:(.*)/$/", "RULE:(.*)/${n}/", r"RULE:\p{IsGreek}/a/"),
    ],
)
def test_invalid_rules_are_refused(rules: str) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.principal\.mapping\.rules"):
        PrincipalMapping(rules)


def test_a_name_without_a_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="No rules apply to CN=b"):
        PrincipalMapping("RULE:^CN=a$/a/").short_name("CN=b")
    assert PrincipalMapping("RULE:^CN=a$/a/").principal_of(None) == ANONYMOUS


def der(pem: str) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pem[pem.index("-----BEGIN CERTIFICATE") :])


def test_the_name_of_a_certificate_is_that_of_java() -> None:
    assert subject_of(der(texts().client)) == "CN=alice,O=cluster"
    assert str(PrincipalMapping("DEFAULT").principal_of(der(texts().client))) == (
        "User:CN=alice,O=cluster"
    )
    now = datetime.now(UTC)
    issued = Authority.create("x", now=now).issue(
        ' #a, "b"+c ', organization="Zoë", uris=["mqd://c/nodes/1"], hosts=["Host"], now=now
    )
    assert subject_of(der(issued.decode())) == r"CN=\ \#a\, \"b\"\+c\ ,O=Zoë"
    assert alternative_names(der(issued.decode())) == {"dns:host", "uri:mqd://c/nodes/1"}
    assert "ip:7f000001" in alternative_names(der(texts().node))


def test_the_end_of_the_validity() -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    authority = Authority.create("x", now=now)
    for days in (30, 10_000):  # the second one is after 2049
        pem = authority.issue("y", now=now, days=days).decode()
        assert expires_at(der(pem)) == now + timedelta(days=days)


def test_broken_certificates_raise_only_value_error() -> None:
    whole = der(texts().node)
    for broken in (b"", b"\x30", whole[:40], whole[:-1], b"\x30\x84\xff\xff\xff\xff", b"\x31\x00"):
        with pytest.raises(ValueError, match="certificate"):
            subject_of(broken)
