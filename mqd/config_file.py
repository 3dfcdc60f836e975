"""The two syntaxes of a configuration file: Java's `.properties` and TOML. Converts text to (key,
value, line).

Properties: https://docs.oracle.com/javase/8/docs/api/java/util/Properties.html#load-java.io.Reader-
(escapes, a backslash that continues a line, `=`, `:` or blanks between key and value; the last of
two equal keys wins). In TOML, tables and dotted keys spell the same names: `[log]` with
`retention.ms = 1` is `log.retention.ms=1`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mqd.options import ConfigError

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BLANKS = " \t\f"
_HEX = re.compile("[0-9A-Fa-f]{4}")
_TOML_PART = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")
_TOML_NAME = rf"(?:{_TOML_PART.pattern})(?:\s*\.\s*(?:{_TOML_PART.pattern}))*"
_TOML_TABLE = re.compile(rf"\s*\[\s*({_TOML_NAME})\s*\]")
_TOML_KEY = re.compile(rf"\s*({_TOML_NAME})\s*=")


class Setting(NamedTuple):
    """One key of a file. `line` counts from 1; None if it is not known."""

    key: str
    value: str
    line: int | None


def read_config_file(path: Path) -> list[Setting]:
    """All settings of the file, in order. A name in `.toml` means TOML, any other name properties.
    Raises ConfigError with file and line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); specify a readable file with --config"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8"
        ) from None
    return (
        parse_toml(text, str(path)) if path.suffix == ".toml" else parse_properties(text, str(path))
    )


def parse_properties(text: str, name: str) -> list[Setting]:
    """The settings of a properties file; `name` is for messages."""
    return [_split(line, number, name) for number, line in _logical_lines(text)]


def parse_toml(text: str, name: str) -> list[Setting]:
    """The settings of a TOML file. Tables become dotted names, and values the text of a properties
    file.
    """
    import tomllib

    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{name}: {error}; quote a key that is also the prefix of another one, such as log.dir"
        ) from None
    lines = _toml_lines(text)
    return [Setting(key, value, lines.get(key)) for key, value in _flatten(document, "", name)]


def _toml_lines(text: str) -> dict[str, int | None]:
    """The line of each key, found by scanning, because tomllib does not report lines. None for text
    that looks like a key in several places.
    """
    found: dict[str, int | None] = {}
    table = ""
    for number, line in enumerate(text.split("\n"), start=1):
        if match := _TOML_TABLE.match(line):
            table = _toml_name(match[1]) + "."
        elif match := _TOML_KEY.match(line):
            key = table + _toml_name(match[1])
            found[key] = None if key in found else number
    return found


def _toml_name(text: str) -> str:
    return ".".join(part.strip("\"'") for part in _TOML_PART.findall(text))


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their continuations joined, without comments and blank lines."""
    parts: list[str] = []
    first = 0
    for number, raw in enumerate(
        text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), start=1
    ):
        line = raw.lstrip(_BLANKS)
        if not parts:
            if not line or line[0] in "#!":
                continue
            first = number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            parts.append(line[:-1])
            continue
        parts.append(line)
        yield first, "".join(parts)
        parts = []
    if parts:
        yield first, "".join(parts)


def _split(line: str, number: int, name: str) -> Setting:
    end = 0
    while end < len(line) and line[end] not in "=:" + _BLANKS:
        end += 2 if line[end] == "\\" else 1
    rest = line[end:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    key = _unescape(line[:end], f"{name}, line {number}: the key")
    return Setting(key, _unescape(rest, f"{name}, line {number}: the value of {key}"), number)


def _unescape(text: str, what: str) -> str:
    """`what` begins messages, which never show the text: it may be a password."""
    if "\\" not in text:
        return text
    characters: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character != "\\" or position == len(text):
            characters.append(character)
            continue
        escaped = text[position]
        position += 1
        if escaped != "u":
            characters.append(_ESCAPES.get(escaped, escaped))
            continue
        digits = text[position : position + 4]
        if not _HEX.fullmatch(digits):
            raise ConfigError(
                f"{what} has a Unicode escape without four hexadecimal digits; "
                "write two backslashes for one"
            )
        characters.append(chr(int(digits, 16)))
        position += 4
    return "".join(characters)


def _flatten(table: Mapping[str, Any], prefix: str, name: str) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.", name)
        else:
            yield prefix + key, _text(value, prefix + key, name)


def _text(value: object, key: str, name: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list) and not any(isinstance(element, dict | list) for element in value):
        return ",".join(_text(element, key, name) for element in value)
    raise ConfigError(
        f"{name}: {key} has a value of type {type(value).__name__}; expected a string, a number, a "
        "boolean or a list of these"
    )
