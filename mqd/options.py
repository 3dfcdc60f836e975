"""The model of a configuration key: its type, its bounds, how its text is parsed, and its effect in
mqd.

`option_table.py` has the keys. `config.py` reads files and the environment.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, IntEnum
from typing import Final, NamedTuple

Value = bool | int | float | str | tuple[str, ...] | None
"""A typed value: `tuple` for lists, None for "not set"."""

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
_BLANKS: Final = "".join(map(chr, range(33)))


def java_trim(text: str) -> str:
    """Java's `trim`, as Kafka applies it to each value: not to blanks of other scripts, which a
    password may have.
    """
    return text.strip(_BLANKS)


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
    """What mqd does with a key that is set."""

    IMPLEMENTED = "implemented"
    IGNORED = "ignored"
    REFUSED = "refused"


BOOLEAN, STRING, INT, SHORT, LONG, DOUBLE, LIST, CLASS, PASSWORD = OptionType
_INTEGERS = {SHORT: (-(2**15), 2**15 - 1), INT: (-(2**31), INT_MAX), LONG: (-(2**63), LONG_MAX)}


_UNITS: Final = ("bytes", "seconds", "minutes", "hours")
"""Last words of keys that are their unit."""
IGNORED_BY_MQD: Final = "Ignored by mqd"
"""Prefix in the documentation of a key that may be set and has no effect."""
LIMITED_BY_MQD: Final = "Limited by mqd: the largest effective value is "
"""Prefix in the documentation of a key whose larger values act as a smaller one."""


class Option(NamedTuple):
    """One configuration key.

    A NamedTuple, not a dataclass: each start creates 370 of them.
    """

    name: str
    type: OptionType
    default: Value
    scopes: frozenset[str]
    """Where the key may be set: "node", "topic", or both; or "group"."""
    status: Status
    note: str
    """Why the key is ignored or refused; empty for an implemented key."""
    meaning: str
    minimum: int | None = None
    maximum: int | None = None
    valid: tuple[str, ...] = ()
    """The permitted strings, or the permitted elements of a list."""
    dynamic: bool = False
    """Whether clients may change the key while the node runs. As in Kafka, except for limits on
    memory, connections and metadata, which protect a node from its clients.
    """
    synonyms: tuple[tuple[str, int], ...] = ()
    """For a topic or group key: the node keys that supply its default, the first one that is set.
    Each has the factor to convert its unit.
    """
    effective_maximum: int | None = None
    """Larger values are permitted, and act as this one."""

    @property
    def documentation(self) -> str:
        """The documentation in DescribeConfigs. A notice begins it if the key, or a large value,
        has no effect.
        """
        if self.status is Status.IGNORED:
            return f"{IGNORED_BY_MQD}: {self.note}. {self.meaning}"
        if self.effective_maximum is not None:
            return f"{LIMITED_BY_MQD}{self.effective_maximum}. {self.meaning}"
        return self.meaning

    def loss(self, value: Value) -> str | None:
        """How a value differs from its effect: the key has none, or a smaller value has the same.
        None for the default, and for a value with its own effect.
        """
        if self.status is Status.IGNORED and value != self.default:
            return self.note
        limit = self.effective_maximum
        if limit is not None and isinstance(value, int) and value > limit:
            return f"{value} acts as {limit}"
        return None

    @property
    def permitted(self) -> str:
        """The remedy for an invalid value."""
        if self.valid:
            return f"choose from {', '.join(self.valid)}"
        if self.type is BOOLEAN:
            return "set it to true or false"
        if self.type is DOUBLE or self.type in _INTEGERS:
            kind = "number" if self.type is DOUBLE else "whole number"
            if self.minimum is not None and self.maximum is not None:
                return f"set it to a {kind} from {self.minimum} to {self.maximum}"
            if self.minimum is not None:
                return f"set it to a {kind} of at least {self.minimum}"
            if self.maximum is not None:
                return f"set it to a {kind} of at most {self.maximum}"
            return f"set it to a {kind}{self._unit}"
        return "`mqd config list` shows its type"

    @property
    def _unit(self) -> str:
        """` of milliseconds`, as the name of the key has it."""
        unit = self.name.rpartition(".")[2]
        units = {"ms": "milliseconds"} | {each: each for each in _UNITS}
        return f" of {units[unit]}" if unit in units else ""

    def problem(self, error: ValueError) -> str:
        """Why `parse` raised `error`, and the remedy. The value of a sensitive option is not
        shown.
        """
        if self.sensitive:
            return f"Invalid value [hidden] for configuration {self.name}; {self.permitted}"
        return str(error)

    @property
    def sensitive(self) -> bool:
        """Whether the value is a secret, which is never printed or described."""
        return self.type is PASSWORD

    def parse(self, text: str) -> Value:
        """The typed value of `text`. Raises ValueError with Kafka's sentence, and the remedy
        if that does not contain it.
        """
        if self.type is LIST:
            return self._parse_list(text)
        text = java_trim(text) if self.type is PASSWORD else text.strip()
        if self.type is BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise self._invalid(text, "Expected value to be either true or false")
            return text.lower() == "true"
        if self.type in _INTEGERS:
            return self._in_range(self._parse_integer(text))
        if self.type is DOUBLE:
            try:
                number = float(text)
            except ValueError:
                raise self._not_a_number(text) from None
            if number != number:
                raise self._not_a_number(text)
            return self._in_range(number)
        self._check_choice(text)
        return text

    def format(self, value: Value) -> str | None:
        """The value as Kafka writes it: `true`, `a,b`; None stays None."""
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
            raise ValueError(
                f"Configuration '{self.name}' values must not be empty: remove the empty element"
            )
        if len(set(elements)) < len(elements):
            raise self._invalid(text, "the list has an element twice; remove one of them")
        for element in elements:
            self._check_choice(element)
        return elements

    def _parse_integer(self, text: str) -> int:
        # int() alone would accept 1_000 and digits of other scripts; Kafka does not
        if not (text.isascii() and text.lstrip("+-").isdigit() and len(text) < 25):
            raise self._not_a_number(text)
        try:
            number = int(text)
        except ValueError:
            raise self._not_a_number(text) from None
        lowest, highest = _INTEGERS[self.type]
        if not lowest <= number <= highest:
            raise self._not_a_number(text)
        self._check_choice(str(number))
        return number

    def _in_range(self, number: float) -> float:
        if self.minimum is not None and number < self.minimum:
            raise self._invalid(str(number), f"Value must be at least {self.minimum}")
        if self.maximum is not None and number > self.maximum:
            raise self._invalid(str(number), f"Value must be no more than {self.maximum}")
        return number

    def _check_choice(self, text: str) -> None:
        if self.valid and text not in self.valid:
            kind = "Value" if self.type in _INTEGERS else "String"
            raise self._invalid(text, f"{kind} must be one of: {', '.join(self.valid)}")

    def _not_a_number(self, text: str) -> ValueError:
        return self._invalid(text, f"Not a number of type {self.type.name}; {self.permitted}")

    def _invalid(self, text: str, reason: str) -> ValueError:
        """Kafka's ConfigException. Control characters in the value are escaped."""
        shown = text if text.isprintable() else repr(text)
        return ValueError(f"Invalid value {shown} for configuration {self.name}: {reason}")


class StartError(Exception):
    """An error that prevents the start of a node, and that the operator can fix.

    The message is one line and contains the remedy.
    """


class ConfigError(StartError):
    """A configuration file, peers file, environment variable or argument is invalid.

    The message contains the place: file and line, or key.
    """


def nearest(key: str, names: Iterable[str]) -> str | None:
    """The name that is most similar to `key`; None if none is similar."""
    import difflib

    found = difflib.get_close_matches(key, list(names), n=1, cutoff=0.6)
    return found[0] if found else None
