"""Checks of the arguments that a user passes. Each raises InvalidType or InvalidValue; the message
names the allowed values. Pure.

They run before anything is opened or queued, so the error is the caller's own exception and is in
no group. `bool` does not count as a number, although it is an `int` in Python.
"""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral, Real

from mqd.client.errors import invalid_type, invalid_value
from mqd.protocol.compression import Codec

INT32_MAX = 2**31 - 1
"""The largest number of milliseconds and bytes that the protocol has room for."""
_SHOWN_CHARACTERS = 60

CODECS = {codec.name.lower(): codec for codec in Codec}


def shown(value: object) -> str:
    """A value for a message, shortened."""
    text = f"{value!a}"
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


def check_whole(name: str, value: object, low: int, high: int = INT32_MAX) -> None:
    """An int from `low` to `high`."""
    allowed = f"give a whole number from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise invalid_type(f"{name} is {shown(value)}", allowed)
    if not low <= int(value) <= high:
        raise invalid_value(f"{name} is {value}", allowed)


def check_number(name: str, value: object, low: float) -> None:
    """A number of at least `low`; infinity is one."""
    allowed = f"give a number of at least {low:g}"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise invalid_type(f"{name} is {shown(value)}", allowed)
    if not float(value) >= low:  # NaN is less than nothing and greater than nothing
        raise invalid_value(f"{name} is {value}", allowed)


def check_above_zero(name: str, value: object) -> None:
    """A number above 0; infinity is one."""
    check_number(name, value, 0)
    if value == 0:
        raise invalid_value(f"{name} is {value}", "give a number above 0")


def check_flag(name: str, value: object) -> None:
    """True or False."""
    if not isinstance(value, bool):
        raise invalid_type(f"{name} is {shown(value)}", "give True or False")


def check_choice(name: str, value: object, allowed: Iterable[object]) -> None:
    """One of the allowed values."""
    choices = list(allowed)
    if isinstance(value, bool) or value not in choices:
        listed = ", ".join(map(repr, choices))
        make = invalid_value if isinstance(value, str | int) else invalid_type
        raise make(f"{name} is {shown(value)}", f"choose one of {listed}")


def check_callable(name: str, value: object) -> None:
    """A function, or None."""
    if value is not None and not callable(value):
        raise invalid_type(f"{name} is {shown(value)}", "give a function, or leave it out")


def check_text(name: str, value: object, example: str) -> None:
    """A str that is not empty."""
    if not isinstance(value, str):
        raise invalid_type(f"{name} is {shown(value)}", f"give a str, for example {example!r}")
    if not value:
        raise invalid_value(f"{name} is empty", f"give a name, for example {example!r}")


def check_optional_text(name: str, value: object, example: str) -> None:
    """A str that is not empty, or None."""
    if value is not None:
        check_text(name, value, example)


def check_topic(value: object) -> None:
    """A name of a topic: not empty. The broker checks its characters."""
    check_text("topic", value, "orders")


def check_several(name: str, values: object) -> None:
    """Several values, and not one str: Python would take each letter for a value."""
    if isinstance(values, str | bytes):
        raise invalid_type(f"{name} is {shown(values)}", f"give a list: [{values!r}]")


def check_names(name: str, values: object) -> tuple[str, ...]:
    """Several names as a tuple."""
    check_several(name, values)
    if not isinstance(values, Iterable):
        raise invalid_type(
            f"{name} is {shown(values)}", "give a list of names, for example ['orders']"
        )
    names = tuple(values)
    for each in names:
        check_text(f"a name in {name}", each, "orders")
    return names


def as_codec(value: object) -> Codec:
    """A Codec, or the name of one, as a Codec."""
    if isinstance(value, Codec):
        return value
    allowed = f"choose one of {', '.join(map(repr, CODECS))}, or a member of Codec"
    if not isinstance(value, str):
        raise invalid_type(f"codec is {shown(value)}", allowed)
    if value not in CODECS:
        raise invalid_value(f"codec is {shown(value)}", allowed)
    return CODECS[value]
