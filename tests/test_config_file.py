from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from mqd.config_file import parse_properties, parse_toml, read_config_file
from mqd.options import ConfigError


def pairs(text: str) -> dict[str, str]:
    return {setting.key: setting.value for setting in parse_properties(text, "f")}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1", {"a": "1"}),
        ("a = 1 ", {"a": "1 "}),
        ("a:1", {"a": "1"}),
        ("a 1", {"a": "1"}),
        ("  a \t=  1", {"a": "1"}),
        ("a==1", {"a": "=1"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("# a=1\n ! b=2\n\n", {}),
        ("a=1\\\n   2\\\n   3\nb=4", {"a": "123", "b": "4"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=1\\", {"a": "1"}),
        ("a=1\\\n# not a comment", {"a": "1# not a comment"}),
        (r"a\ b\=c=\u00e9\t\x", {"a b=c": "é\tx"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1\na=2", {"a": "2"}),
        ("log.dirs=C:\\\\x,/y", {"log.dirs": "C:\\x,/y"}),
    ],
)
def test_properties(text: str, expected: dict[str, str]) -> None:
    assert pairs(text) == expected


def test_a_setting_knows_its_first_line() -> None:
    assert [(s.key, s.line) for s in parse_properties("\n#\na=\\\n\\\n1\nb=2", "f")] == [
        ("a", 3),
        ("b", 6),
    ]


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\uzzzz", "a=\\u", "a=\\u+123", "a=\\u1_23"])
def test_a_bad_escape_is_named_with_its_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"f, line 2: .*four hexadecimal digits"):
        parse_properties("\n" + text, "f")
    with pytest.raises(ConfigError) as caught:
        parse_properties("ssl.key.password=ab\\uTops3cret", "f")
    assert "ssl.key.password" in str(caught.value) and "Tops" not in str(caught.value)


@given(st.dictionaries(st.text(min_size=1), st.text(), max_size=5))
def test_whatever_is_escaped_is_read_back(table: dict[str, str]) -> None:
    def escaped(text: str) -> str:
        return "".join(
            c if c.isascii() and c.isalnum() else "".join(f"\\u{unit:04x}" for unit in utf16(c))
            for c in text
        )

    def utf16(character: str) -> list[int]:
        data = character.encode("utf-16-be", "surrogatepass")
        return [int.from_bytes(data[i : i + 2]) for i in range(0, len(data), 2)]

    def joined(text: str) -> str:
        return text.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")

    text = "\n".join(f"{escaped(key)}={escaped(value)}" for key, value in table.items())
    assert {joined(k): joined(v) for k, v in pairs(text).items()} == table


@given(st.text(), st.booleans())
def test_any_text_is_read_or_refused(text: str, toml: bool) -> None:
    try:
        (parse_toml if toml else parse_properties)(text, "f")
    except ConfigError as error:
        assert str(error).startswith("f")


def test_toml_spells_the_same_names() -> None:
    text = '"log.dir" = "/a"\n"log.dir.failure.timeout.ms" = 5\nnum.partitions = 3\n'
    text += '[log]\nretention.ms = -1\ncleanup.policy = ["compact", "delete"]\n'
    text += "[auto.create]\ntopics.enable = false\n[log.cleaner.min]\ncleanable.ratio = 0.25\n"
    assert parse_toml(text, "f") == [
        ("log.dir", "/a", 1),
        ("log.dir.failure.timeout.ms", "5", 2),
        ("num.partitions", "3", 3),
        ("log.retention.ms", "-1", 5),
        ("log.cleanup.policy", "compact,delete", 6),
        ("log.cleaner.min.cleanable.ratio", "0.25", 10),
        ("auto.create.topics.enable", "false", 8),
    ]


def test_an_uncertain_toml_line_number_is_not_reported() -> None:
    assert parse_toml('a = """\nb = 1\n"""\nb = 2\nc = {d = 3}\n[x . "y"]\nz=1', "f") == [
        ("a", "\nb = 1\n".lstrip("\n"), 1),
        ("b", "2", None),
        ("c.d", "3", None),
        ("x.y.z", "1", 7),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a = ", ["f: "]),
        ("log.dir = 1\nlog.dir.failure = 2", ["quote a key"]),
        ("a = 1979-05-27", ["a has a value of type date"]),
        ("a = [[1]]", ["a has a value of type list"]),
    ],
)
def test_bad_toml_is_named(text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_toml(text, "f")
    for word in words:
        assert word in str(caught.value)


def test_the_suffix_decides(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('a = "x"')
    (tmp_path / "c.conf").write_text('a = "x"')
    assert read_config_file(tmp_path / "c.toml")[0].value == "x"
    assert read_config_file(tmp_path / "c.conf")[0].value == '"x"'


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"none\.properties: cannot be read \(No such file or directory\)"
    ):
        read_config_file(tmp_path / "none.properties")
    (tmp_path / "latin").write_bytes(b"a=\xe9")
    with pytest.raises(ConfigError, match="byte 2 is not UTF-8"):
        read_config_file(tmp_path / "latin")
