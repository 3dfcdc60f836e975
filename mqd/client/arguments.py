"""Checks of the arguments that a user passes. Each raises InvalidType or InvalidValue; the message
names the allowed values. Pure.

They run before anything is opened or queued, so the error is the caller's own exception and is in
no group. `bool` does not count as a number, although it is an `int` in Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from numbers import Integral, Real
from typing import Any

from mqd.client.errors import InvalidValue, invalid_type, invalid_value
from mqd.errors import ErrorCode
from mqd.limits import COORDINATOR_KEY_BYTES_MAX, STRING_BYTES_MAX, TOPIC_NAME_CHARS_MAX
from mqd.protocol.compression import Codec
from mqd.topic_names import topic_name_problem

INT16_MAX, INT64_MAX = 2**15 - 1, 2**63 - 1
INT32_MAX = 2**31 - 1
"""The largest number of milliseconds and bytes that the protocol has room for."""
_SHOWN_CHARACTERS = 60

CODECS = {codec.name.lower(): codec for codec in Codec}


def shown(value: object) -> str:
    """A value for a message, shortened."""
    text = f"{value!a}"
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


def milliseconds(seconds: float) -> int:
    """A bound for a request; infinity and long times as the largest number of the protocol."""
    return int(min(seconds * 1000, INT32_MAX))


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


def check_parameters(name: str, function: object, parameters: Sequence[str]) -> None:
    """A function, or None, that accepts as many arguments as `parameters` has names."""
    check_callable(name, function)
    if function is None:
        return
    if isinstance(function, type):
        raise invalid_type(f"{name} is a class", f"give an object: {function.__name__}()")
    assert callable(function)
    import inspect

    try:
        signature = inspect.signature(function)
    except ValueError:  # a builtin may have none
        return
    try:
        signature.bind(*parameters)
    except TypeError:
        listed = ", ".join(parameters)
        message = f"{name} cannot be called with {len(parameters)} arguments"
        raise invalid_type(message, f"give a function of ({listed})") from None


def check_member(name: str, value: object, allowed: type[Enum]) -> None:
    """A member of an enumeration."""
    if not isinstance(value, allowed):
        listed = ", ".join(f"{allowed.__name__}.{each.name}" for each in allowed)
        raise invalid_type(f"{name} is {shown(value)}", f"choose one of {listed}")


def check_string(
    name: str, value: object, example: str, *, bytes_max: int = STRING_BYTES_MAX
) -> None:
    """A str that the protocol can encode; it may be empty."""
    if not isinstance(value, str):
        raise invalid_type(f"{name} is {shown(value)}", f"give a str, for example {example!r}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        message = f"{name} is {shown(value)}, which is not valid UTF-8"
        raise invalid_value(message, "use valid Unicode text") from None
    if size > bytes_max:
        raise invalid_value(f"{name} has {size} bytes", f"give at most {bytes_max}")


def check_text(
    name: str, value: object, example: str, *, bytes_max: int = STRING_BYTES_MAX
) -> None:
    """A str that is not empty."""
    if value == "":
        raise invalid_value(f"{name} is empty", f"give a name, for example {example!r}")
    check_string(name, value, example, bytes_max=bytes_max)


def check_optional_text(name: str, value: object, example: str) -> None:
    """A str that is not empty, or None."""
    if value is not None:
        check_text(name, value, example)


def check_id(name: str, value: object, example: str) -> None:
    """A group id or a transactional id, with the limit of the broker."""
    check_text(name, value, example, bytes_max=COORDINATOR_KEY_BYTES_MAX)


def check_topic(value: object, name: str = "topic") -> None:
    """A legal name of a topic, by the rule of the broker. A topic with another name never exists,
    so retries of a request about it would be in vain.
    """
    if not isinstance(value, str):
        raise invalid_type(f"{name} is {shown(value)}", "give a str, for example 'orders'")
    problem = topic_name_problem(value)
    if problem is not None:
        remedy = (
            f"give a name of 1 to {TOPIC_NAME_CHARS_MAX} of these characters, other than '.' and "
            "'..': a-z, A-Z, 0-9, '.', '_', '-'"
        )
        raise InvalidValue(ErrorCode.INVALID_TOPIC_EXCEPTION, problem, remedy=remedy)


def check_several(name: str, values: object) -> None:
    """Several values, and not one str: Python would take each letter for a value."""
    if isinstance(values, str | bytes):
        raise invalid_type(f"{name} is {shown(values)}", f"give a list: [{values!r}]")


def as_list(name: str, values: object, example: str) -> list[Any]:
    """Several values, not one str."""
    check_several(name, values)
    if not isinstance(values, Iterable):
        raise invalid_type(f"{name} is {shown(values)}", f"give a list, for example {example}")
    return list(values)


def check_mapping(name: str, values: object, example: str) -> None:
    """A dict, or another Mapping."""
    if not isinstance(values, Mapping):
        raise invalid_type(f"{name} is {shown(values)}", f"give a dict, for example {example}")


def check_names(name: str, values: object, example: str = "orders") -> tuple[str, ...]:
    """Several names as a tuple."""
    names = tuple(as_list(name, values, f"['{example}']"))
    for each in names:
        check_text(f"a name in {name}", each, example)
    return names


def check_ids(name: str, values: object, example: str) -> list[str]:
    """Group ids, member ids or transactional ids, as brokers list them: Apache Kafka also has
    longer ones, and an empty group id.
    """
    ids = as_list(name, values, f"['{example}']")
    for each in ids:
        check_string(f"an id in {name}", each, example)
    return ids


def check_topics(name: str, values: object) -> list[str]:
    """Several names of topics."""
    topics = as_list(name, values, "['orders']")
    for each in topics:
        check_topic(each, f"a topic in {name}")
    return topics


def check_wholes(name: str, values: object, low: int, high: int) -> list[int]:
    """Several ints from `low` to `high`."""
    numbers = as_list(name, values, "[1, 2]")
    for each in numbers:
        check_whole(f"a number in {name}", each, low, high)
    return numbers


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
