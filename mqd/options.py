"""What a configuration key is: its type, its bounds, how its text is read, and what mqd does with
it.

The keys themselves are in `option_table.py`; reading files and the environment is `config.py`'s.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final, NamedTuple

Value = bool | int | float | str | tuple[str, ...] | None
"""A typed value: `tuple` for lists, None for "not set"."""

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1


class OptionType(IntEnum):
    """The type of a value; the number is DescribeConfigs' `config_type`."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Status(Enum):
    """What becomes of a key that an operator sets."""

    IMPLEMENTED = "implemented"
    IGNORED = "ignored"
    REFUSED = "refused"


BOOLEAN, STRING, INT, SHORT, LONG, DOUBLE, LIST, CLASS, PASSWORD = OptionType
_INTEGERS = {SHORT: (-(2**15), 2**15 - 1), INT: (-(2**31), INT_MAX), LONG: (-(2**63), LONG_MAX)}


IGNORED_BY_MQD: Final = "Ignored by mqd"
"""How the documentation of a key begins that may be set and has no effect."""


class Option(NamedTuple):
    """One key: what it is called, what it holds, and what mqd does with it.

    A NamedTuple, not a dataclass: the table makes 370 of them whenever anything starts.
    """

    name: str
    type: OptionType
    default: Value
    scopes: frozenset[str]
    """Where it may be set: "node", "topic", or both; or "group"."""
    status: Status
    note: str
    """Why the key is ignored or refused; empty where it is implemented."""
    meaning: str
    minimum: int | None = None
    maximum: int | None = None
    valid: tuple[str, ...] = ()
    """The words a string may be, or the elements that a list may have."""
    dynamic: bool = False
    """Whether clients may change it while the node runs: where they may in Kafka, except bounds on
    a node's memory, connections and metadata, which protect it from clients.
    """
    synonyms: tuple[tuple[str, int], ...] = ()
    """Of a topic's or a group's key: the node keys that stand in for it, first set one
    first, each with the factor to its unit.
    """

    @property
    def documentation(self) -> str:
        """What DescribeConfigs says of the key; of one without effect, that first."""
        return (
            f"{IGNORED_BY_MQD}: {self.note}. {self.meaning}"
            if self.status is Status.IGNORED
            else self.meaning
        )

    @property
    def sensitive(self) -> bool:
        """A secret: never printed, never described."""
        return self.type is PASSWORD

    def parse(self, text: str) -> Value:
        """The typed value of `text`; ValueError says what it should have been."""
        if self.type is LIST:
            return self._parse_list(text)
        text = text.strip() if self.type is not PASSWORD else text
        if self.type is BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise ValueError(f"{text!r} is not true or false")
            return text.lower() == "true"
        if self.type in _INTEGERS:
            return self._in_range(self._parse_integer(text))
        if self.type is DOUBLE:
            try:
                number = float(text)
            except ValueError:
                raise ValueError(f"{text!r} is not a number") from None
            if number != number:
                raise ValueError(f"{text!r} is not a number")
            return self._in_range(number)
        if self.valid and text not in self.valid:
            raise ValueError(f"{text!r} is not one of {', '.join(self.valid)}")
        return text

    def format(self, value: Value) -> str | None:
        """What Kafka writes for a value: `true`, `a,b`; None stays None."""
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, tuple):
            return ",".join(value)
        if isinstance(value, bool):
            return "true" if value else "false"
        return str(value)

    def _parse_list(self, text: str) -> tuple[str, ...]:
        elements = tuple(element.strip() for element in text.split(",")) if text.strip() else ()
        if "" in elements:
            raise ValueError(f"{text!r} has an empty element")
        if len(set(elements)) < len(elements):
            raise ValueError(f"{text!r} contains a duplicate element")
        for element in elements:
            if self.valid and element not in self.valid:
                raise ValueError(f"{element!r} is not one of {', '.join(self.valid)}")
        return elements

    def _parse_integer(self, text: str) -> int:
        # int() alone would take 1_000 and digits of other scripts, which Kafka does not
        if not (text.isascii() and text.lstrip("+-").isdigit() and len(text) < 25):
            raise ValueError(f"{text!r} is not a whole number")
        try:
            number = int(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a whole number") from None
        lowest, highest = _INTEGERS[self.type]
        if not lowest <= number <= highest:
            raise ValueError(f"{text} is out of range for the type {self.type.name.lower()}")
        if self.valid and str(number) not in self.valid:
            raise ValueError(f"{text} is not one of {', '.join(self.valid)}")
        return number

    def _in_range(self, number: float) -> float:
        if self.minimum is not None and number < self.minimum:
            raise ValueError(f"{number} is less than the minimum {self.minimum}")
        if self.maximum is not None and number > self.maximum:
            raise ValueError(f"{number} is greater than the maximum {self.maximum}")
        return number


class StartError(Exception):
    """Something that the operator can mend keeps the node from starting.

    The message is one line and names the remedy.
    """


class ConfigError(StartError):
    """A configuration or peers file, an environment variable or an argument is wrong.

    Names the place: file and line, or key.
    """
