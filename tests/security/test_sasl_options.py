"""SASL of a listener: which key counts, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqd.config import ConfigError, NodeConfig
from mqd.security.oauthbearer import TokenRules
from mqd.security.sasl_options import KeySetOptions, SaslOptions, sasl_options
from mqd.security.tls_settings import TrustStore

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
BASE = {
    "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
    "listener.name.x.plain.sasl.jaas.config": f'{PLAIN} user_a="s3cret" user_b="2";',
}


def options(**changes: str) -> SaslOptions:
    keys = {name.replace("__", ".").replace("_9", "_"): text for name, text in changes.items()}
    return sasl_options(NodeConfig.load(None, {}, {**BASE, **keys}), "X")


def test_the_most_specific_key_counts() -> None:
    found = options()
    assert found.mechanisms == ("SCRAM-SHA-512", "PLAIN")
    assert found.passwords == {"a": "s3cret", "b": "2"} and "s3cret" not in repr(found)
    assert (found.receive_bytes_max, found.failure_delay_ms) == (524_288, 100)
    assert found.max_reauth_ms == {"SCRAM-SHA-512": 0, "PLAIN": 0}
    assert found.key_set is None
    assert options(sasl__server__max__receive__size="-1").receive_bytes_max == 2**31 - 1
    found = options(
        connections__max__reauth__ms="1",
        listener__name__x__connections__max__reauth__ms="2",
        listener__name__x__plain__connections__max__reauth__ms="3",
        listener__name__y__connections__max__reauth__ms="4",
    )
    assert found.max_reauth_ms == {"SCRAM-SHA-512": 2, "PLAIN": 3}
    found = options(
        listener__name__x__sasl__enabled__mechanisms="OAUTHBEARER",
        sasl__oauthbearer__jwks__endpoint__url="https://a/keys",
        listener__name__x__oauthbearer__sasl__oauthbearer__jwks__endpoint__url="file:///keys",
        sasl__oauthbearer__expected__audience="a,b",
        sasl__oauthbearer__sub__claim__name="email",
        listener__name__x__oauthbearer__sasl__server__callback__handler__class=(
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
        ),
        listener__name__x__oauthbearer__sasl__oauthbearer__jwt__validator__class=(
            "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator"
        ),
    )
    assert found.key_set == KeySetOptions("file:///keys", 3_600_000, 100, 10_000)
    assert found.token_rules == TokenRules(audiences=("a", "b"), subject_claim="email")
    assert found.passwords == {}


BEARER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"


def bearer(url: str, jaas: str) -> SaslOptions:
    return options(
        sasl__enabled__mechanisms="OAUTHBEARER",
        sasl__oauthbearer__jwks__endpoint__url=url,
        listener__name__x__oauthbearer__sasl__jaas__config=f"{BEARER} {jaas};",
    )


def test_tls_for_the_key_set_is_in_the_jaas_string() -> None:
    found = bearer(
        "https://a/keys",
        'ssl.truststore.location="/ca.pem" ssl.truststore.type=PEM ssl.provider=x'
        ' ssl.endpoint.identification.algorithm=""',
    )
    assert found.key_set is not None and found.key_set.tls is not None
    assert found.key_set.tls.settings.trust_store == TrustStore(
        "PEM", "/ca.pem", name="ssl.truststore.location"
    )
    assert not found.key_set.tls.check_host_name
    assert found.warnings == ()
    found = bearer("https://a/keys", "")
    assert found.key_set is not None and found.key_set.tls is None


def test_options_of_oauthbearer_without_effect_cause_warnings() -> None:
    where = "listener.name.x.oauthbearer.sasl.jaas.config: the option"
    found = bearer("https://a/keys", 'unsecuredValidatorRequiredScope="a" nonsense="b"')
    assert found.warnings == (
        f"{where} unsecuredValidatorRequiredScope has no effect",
        f"{where} nonsense has no effect",
    )
    found = bearer("file:///keys", 'ssl.truststore.type="PEM" ssl.client.auth="none"')
    assert found.warnings == (
        f"{where} ssl.truststore.type has no effect: the key set is not at an https:// address",
        f"{where} ssl.client.auth has no effect",
    )
    with pytest.raises(ConfigError, match=r"sasl\.jaas\.config: ssl\.truststore\.type: 'X'"):
        bearer("https://a/keys", 'ssl.truststore.location="/ca" ssl.truststore.type="X"')


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:80", "localhost", "[::1]", "[::1]:80"])
def test_loopback_needs_no_tls(host: str) -> None:
    found = bearer(f"http://{host}/keys", "")
    assert found.key_set is not None and found.key_set.url == f"http://{host}/keys"


def test_users_in_a_file() -> None:
    module = f'{PLAIN} users_file="/etc/mqd/users";'
    found = options(listener__name__x__plain__sasl__jaas__config=module)
    assert (found.passwords, found.users_file) == ({}, "/etc/mqd/users")
    assert options().users_file is None


REFUSED = [
    (
        {"listener__name__x__plain__sasl__jaas__config": f'{PLAIN} users_file="f" user_a="x";'},
        "has users_file and users",
    ),
    ({"listener__name__x__plain__sasl__jaas__config": f'{PLAIN} users_file="";'}, "users_file"),
    ({"sasl__enabled__mechanisms": ""}, "GSSAPI"),
    ({"sasl__enabled__mechanisms": "GSSAPI,PLAIN"}, "'GSSAPI', which is not supported"),
    (
        {"listener__name__x__plain__sasl__jaas__config": "x"},
        r"control flag.*; write it as org.*PlainLoginModule",
    ),
    (
        {"listener__name__x__plain__sasl__jaas__config": f"{PLAIN};"},
        r"no users.*or use SCRAM",
    ),
    ({"listener__name__x__plain__sasl__jaas__config": f'{PLAIN} user_a="";'}, "'a' of PLAIN"),
    (
        {"listener__name__x__plain__sasl__jaas__config": 'a.ScramLoginModule required x="hush";'},
        "PLAIN needs PlainLoginModule",
    ),
    (
        {"listener__name__x__plain__sasl__server__callback__handler__class": "com.example.Ours"},
        "runs no Java classes",
    ),
    (
        {
            "sasl__enabled__mechanisms": "OAUTHBEARER",
            "sasl__oauthbearer__jwks__endpoint__url": "https://a/keys",
            "listener__name__x__oauthbearer__sasl__oauthbearer__jwt__validator__class": "a.B",
        },
        "jwt.validator.class names the class 'a.B', and mqd runs no Java classes",
    ),
    ({"listener__name__x__plain__connections__max__reauth__ms": "soon"}, "plain.connections.max"),
    ({"sasl__enabled__mechanisms": "OAUTHBEARER"}, "jwks.endpoint.url"),
    (
        {
            "sasl__enabled__mechanisms": "OAUTHBEARER",
            "sasl__oauthbearer__jwks__endpoint__url": "http://10.0.0.1/keys",
        },
        "use https://",
    ),
    ({"delegation__token__secret__key": "hush"}, "create SCRAM users instead"),
]


def test_what_is_refused_and_the_remedy() -> None:
    for changes, reason in REFUSED:
        with pytest.raises(ConfigError, match=reason) as caught:
            options(**changes)
        assert "hush" not in str(caught.value)


def test_a_file_with_passwords_should_be_private(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    settings = {"listeners": "X://:9092", **BASE}
    file.write_text("".join(f"{key}={text}\n" for key, text in settings.items()))
    for mode, words in ((0o640, "chmod 600"), (0o600, "")):
        file.chmod(mode)
        warnings = NodeConfig.load(file).warnings
        assert bool(words) == bool(warnings) and all(words in each for each in warnings)
