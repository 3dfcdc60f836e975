r"""Records as text: formats with % as in kcat and rpk, and the JSON envelope that consume writes
and produce reads. Pure.

    %t topic  %p partition  %o offset  %k key  %v value (%s too)  %h headers  %T timestamp
    %K %V lengths of key and value
    %k{hex} %v{base64} %T{iso}  %%  \n \t \r \0 \\ \xNN

In the envelope, keys and values that are not UTF-8 are key_base64 and value_base64, also those of
headers.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mqctl import render
from mqctl.places import format_time
from mqd.protocol.record_reader import Record

Piece = Callable[[str, int, Record], bytes]
Headers = tuple[tuple[str, bytes | None], ...]

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_PART = re.compile(
    r"%(?P<letter>.)(?:\{(?P<modifier>[^}]*)\})?|\\x(?P<hex>[0-9a-fA-F]{2})|\\(?P<escape>.)",
    re.DOTALL,
)


class Envelope(NamedTuple):
    """One record to produce, as read from JSON."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int | None
    partition: int | None


def compile_format(text: str, *, inert: bool = False) -> Callable[[str, int, Record], bytes]:
    """A function (topic, partition, record) -> bytes. With `inert`, control characters of records
    are escaped, for a terminal.

    Raises ValueError for an unknown letter, modifier or escape.
    """
    pieces: list[bytes | Piece] = []
    position = 0
    for match in _PART.finditer(text):
        pieces.append(text[position : match.start()].encode())
        pieces.append(_piece(match, inert))
        position = match.end()
    pieces.append(text[position:].encode())

    def apply(topic: str, partition: int, record: Record) -> bytes:
        return b"".join(
            piece if isinstance(piece, bytes) else piece(topic, partition, record)
            for piece in pieces
        )

    return apply


def unescape(text: str) -> bytes:
    r"""The bytes of an argument with escapes such as \t, \n and \xNN.

    Raises ValueError.
    """
    return compile_format(text.replace("%", "%%"))("", 0, Record(0, 0, None, None))


def _piece(match: re.Match[str], inert: bool) -> bytes | Piece:
    if match["hex"] is not None:
        return bytes([int(match["hex"], 16)])
    if match["escape"] is not None:
        if match["escape"] not in _ESCAPES:
            raise ValueError(f"unknown escape \\{match['escape']} in the format")
        return _ESCAPES[match["escape"]]
    letter, modifier = match["letter"], match["modifier"]
    if letter == "%" and modifier is None:
        return b"%"
    if letter in "kvsh":
        show = _shower(modifier, inert)
        if letter == "h":
            return lambda topic, partition, record: _headers(record.headers, show)
        if letter == "k":
            return lambda topic, partition, record: show(record.key)
        return lambda topic, partition, record: show(record.value)
    if letter == "T" and modifier == "iso":
        return lambda topic, partition, record: format_time(record.timestamp).encode()
    plain: dict[str, Piece] = {
        "t": lambda topic, partition, record: topic.encode(),
        "p": lambda topic, partition, record: b"%d" % partition,
        "o": lambda topic, partition, record: b"%d" % record.offset,
        "T": lambda topic, partition, record: b"%d" % record.timestamp,
        "K": lambda topic, partition, record: (
            b"%d" % (-1 if record.key is None else len(record.key))
        ),
        "V": lambda topic, partition, record: (
            b"%d" % (-1 if record.value is None else len(record.value))
        ),
    }
    if letter not in plain or modifier is not None:
        raise ValueError(
            f"unknown {match[0]!r} in the format; valid are %t %p %o %k %v %h %T %K %V and %%"
        )
    return plain[letter]


def _shower(modifier: str | None, inert: bool) -> Callable[[bytes | None], bytes]:
    if modifier is None:
        return _inert if inert else lambda data: data or b""
    if modifier == "hex":
        return lambda data: (data or b"").hex().encode()
    if modifier == "base64":
        return lambda data: base64.b64encode(data or b"")
    raise ValueError(
        f"unknown modifier {{{modifier}}} in the format; valid are {{hex}} and {{base64}}, and "
        f"{{iso}} after %T"
    )


def _inert(data: bytes | None) -> bytes:
    return render.printable((data or b"").decode(errors="surrogateescape"), keep="\t").encode(
        errors="backslashreplace"
    )


def _headers(
    headers: Sequence[tuple[str, bytes | None]], show: Callable[[bytes | None], bytes]
) -> bytes:
    return b",".join(name.encode() + b"=" + show(content) for name, content in headers)


# -- the envelope


def to_envelope(topic: str, partition: int, record: Record) -> dict[str, Any]:
    """A record as JSON-ready values."""
    return {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **_named("key", record.key),
        **_named("value", record.value),
        "headers": [{"name": name, **_named("value", content)} for name, content in record.headers],
    }


def _named(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def from_envelope(line: bytes | str) -> Envelope:
    """A line of JSON as a record to produce. Raises ValueError if it is invalid."""
    try:
        data = json.loads(line)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(data, dict):
        raise ValueError("not a JSON object")
    if not any(name in data for name in ("value", "value_base64", "key", "key_base64")):
        raise ValueError("a record needs a key or a value")
    headers = data.get("headers") or []
    if isinstance(headers, dict):
        headers = [{"name": name, "value": content} for name, content in headers.items()]
    if not isinstance(headers, list) or not all(
        isinstance(each, dict) and isinstance(each.get("name"), str) for each in headers
    ):
        raise ValueError("headers must be a list of objects with name and value")
    return Envelope(
        key=_bytes_of(data, "key"),
        value=_bytes_of(data, "value"),
        headers=tuple((each["name"], _bytes_of(each, "value")) for each in headers),
        timestamp=_integer(data, "timestamp"),
        partition=_integer(data, "partition"),
    )


def _bytes_of(data: dict[str, Any], name: str) -> bytes | None:
    encoded = data.get(f"{name}_base64")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise ValueError(f"{name}_base64 is not base64") from None
    plain = data.get(name)
    if plain is None:
        return None
    if isinstance(plain, str):
        return plain.encode(errors="surrogatepass")
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode()


def _integer(data: dict[str, Any], name: str) -> int | None:
    found = data.get(name)
    if found is not None and (not isinstance(found, int) or isinstance(found, bool)):
        raise ValueError(f"{name} must be a whole number")
    return found
