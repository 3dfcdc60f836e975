"""JAAS strings, as in Kafka's `sasl.jaas.config`: a login module, a control flag, and options.

    org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret";

The rules are those of java.io.StreamTokenizer, with which Kafka reads them: words, strings in
double or single quotes with Java's escapes, and comments. No Java is involved. A core.

Two mistakes that Kafka accepts are errors here: a string without its closing quote, and two options
with the same name. Messages name positions and no word of the text: in a malformed text, any word
can be a part of a password.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

PLAIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTHBEARER_MODULE: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"

_FLAGS = ("required", "requisite", "sufficient", "optional")
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_OCTAL = "01234567"
_QUOTES = "\"'"


@dataclass(frozen=True, slots=True)
class LoginModule:
    """One entry. `repr` hides the options."""

    name: str
    """The class, for example `org.apache.kafka.common.security.plain.PlainLoginModule`."""
    flag: str
    """`required`, `requisite`, `sufficient` or `optional`."""
    options: Mapping[str, str] = field(repr=False)

    @property
    def short_name(self) -> str:
        """The class without its package."""
        return self.name.rpartition(".")[2]


def parse_jaas(text: str) -> tuple[LoginModule, ...]:
    """All entries of a JAAS string. Raises ValueError."""
    tokens = _Tokens(text)
    found = []
    while (first := tokens.next()) is not None:
        found.append(_entry(first, tokens))
    if not found:
        raise ValueError("it has no login module")
    return tuple(found)


def parse_login_module(text: str) -> LoginModule:
    """The only entry of a JAAS string. Raises ValueError."""
    found = parse_jaas(text)
    if len(found) != 1:
        raise ValueError(f"it has {len(found)} login modules, expected one")
    return found[0]


class _Token(NamedTuple):
    text: str
    is_word: bool
    """A word or a string, not a punctuation mark."""
    position: int
    """Where it begins, counted from 1."""

    def is_mark(self, mark: str) -> bool:
        return not self.is_word and self.text == mark


def _entry(first: _Token, tokens: _Tokens) -> LoginModule:
    if not first.is_word:
        raise ValueError("it begins with a punctuation mark, expected a login module")
    flag = tokens.next()
    if flag is None or not flag.is_word or flag.text.lower() not in _FLAGS:
        raise ValueError(f"the login module has no control flag; use one of {', '.join(_FLAGS)}")
    options: dict[str, str] = {}
    while True:
        key = tokens.next()
        if key is None:
            raise ValueError("the entry does not end with ';'")
        if key.is_mark(";"):
            return LoginModule(first.text, flag.text.lower(), options)
        if not key.is_word:
            raise ValueError(f"expected an option at character {key.position}")
        equals, value = tokens.next(), tokens.next()
        if equals is None or not equals.is_mark("=") or value is None or not value.is_word:
            raise ValueError(
                f'the option at character {key.position} has no value; write it as NAME="...", '
                "with quotes"
            )
        if key.text in options:
            raise ValueError(f"the option at character {key.position} is given twice")
        options[key.text] = value.text


class _Tokens:
    """The tokens of a text, in order."""

    def __init__(self, text: str) -> None:
        self._tokens = self._split(text)

    def next(self) -> _Token | None:
        return next(self._tokens, None)

    @classmethod
    def _split(cls, text: str) -> Iterator[_Token]:
        position = 0
        while position < len(text):
            character = text[position]
            if character <= " ":
                position += 1
            elif character == "/":
                position = _after_comment(text, position)
            elif character in _QUOTES:
                start = position
                value, position = _string(text, start)
                yield _Token(value, True, start + 1)
            elif _begins_word(character):
                end = position + 1
                while end < len(text) and _continues_word(text[end]):
                    end += 1
                yield _Token(text[position:end], True, position + 1)
                position = end
            else:  # a digit too: Java reads a number, which is not a value
                yield _Token(character, False, position + 1)
                position += 1


def _begins_word(character: str) -> bool:
    is_letter = character.isascii() and character.isalpha()
    return is_letter or character in "_$" or character >= "\xa0"


def _continues_word(character: str) -> bool:
    return _begins_word(character) or character in "0123456789.-"


def _after_comment(text: str, position: int) -> int:
    """Where the comment at `position` ends. Java takes any single slash for a comment to the end of
    the line.
    """
    if text.startswith("/*", position):
        end = text.find("*/", position + 2)
        return len(text) if end < 0 else end + 2
    while position < len(text) and text[position] not in "\r\n":
        position += 1
    return position


def _string(text: str, position: int) -> tuple[str, int]:
    """The string that begins with the quote at `position`, and the position after it."""
    quote = text[position]
    position += 1
    begin = position
    characters: list[str] = []
    while position < len(text) and text[position] not in "\r\n":
        character = text[position]
        position += 1
        if character == quote:
            return "".join(characters), position
        if character == "\\" and position < len(text):
            character = text[position]
            position += 1
            if character in _OCTAL:
                # three digits only up to \377
                digits_max = 3 if character <= "3" else 2
                start = position - 1
                while position < min(len(text), start + digits_max) and text[position] in _OCTAL:
                    position += 1
                character = chr(int(text[start:position], 8))
            else:
                character = _ESCAPES.get(character, character)
        characters.append(character)
    raise ValueError(f"the string at character {begin} has no closing {quote}")
