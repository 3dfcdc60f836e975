"""The subject of a certificate, as Java's X500Principal prints it (RFC 2253), and its alternative
names. A core.

Kafka's rules and ACLs name clients by this text, so it must be equal to Java's. The last name of
the certificate comes first. Nine attributes have names; all others have dotted numbers, with the
value in hexadecimal.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

_NAMES: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
"""The names of RFC 2253. Java prints them by name, and all others by number."""
_SEQUENCE, _SET, _OID, _VERSION, _EXTENSIONS = 0x30, 0x31, 0x06, 0xA0, 0xA3
_OCTETS, _UTC_TIME = 0x04, 0x17
_STRINGS: Final = {
    0x0C: "utf-8",
    0x13: "ascii",
    0x14: "latin-1",
    0x16: "ascii",
    0x1C: "utf-32-be",
    0x1E: "utf-16-be",
}
"""Encodings of string types, by their tags."""
_ESCAPED: Final = frozenset(',=+<>#;"\\')
_ALTERNATIVE_NAMES: Final = "2.5.29.17"
_DNS, _URI, _ADDRESS = 0x82, 0x86, 0x87


def subject_of(certificate: bytes) -> str:
    """The name of the subject. Raises ValueError for bytes that are no certificate in DER."""
    fields = _certificate_fields(certificate)
    subject = fields[4][1]  # serial, signature, issuer, validity, subject
    parts = []
    for tag, part in _elements(subject):
        if tag != _SET:
            raise ValueError("the subject of a certificate is invalid")
        parts.append("+".join(_attribute(each) for _, each in _elements(part)))
    return ",".join(reversed(parts))


def expires_at(certificate: bytes) -> datetime:
    """The end of its validity, in UTC. Raises ValueError."""
    tag, text = list(_elements(_certificate_fields(certificate)[3][1]))[1]
    digits = text.decode("ascii", "replace")
    if tag == _UTC_TIME:  # of 1950 to 2049 (RFC 5280)
        digits = f"{20 if int(digits[:2]) < 50 else 19}{digits}"
    return datetime.strptime(digits, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def alternative_names(certificate: bytes) -> frozenset[str]:
    """Its DNS names (`dns:host`), addresses (`ip:7f000001`, in hexadecimal) and URIs (`uri:...`).
    Raises ValueError.
    """
    found: set[str] = set()
    for tag, content in _certificate_fields(certificate):
        if tag != _EXTENSIONS:
            continue
        for _, extension in _elements(next(_elements(content))[1]):
            parts = list(_elements(extension))
            if _oid(parts[0][1]) != _ALTERNATIVE_NAMES or parts[-1][0] != _OCTETS:
                continue
            for name_tag, name in _elements(next(_elements(parts[-1][1]))[1]):
                if name_tag == _DNS:
                    found.add("dns:" + name.decode("ascii", "replace").lower())
                elif name_tag == _URI:
                    found.add("uri:" + name.decode("ascii", "replace"))
                elif name_tag == _ADDRESS:
                    found.add("ip:" + name.hex())
    return frozenset(found)


def _certificate_fields(certificate: bytes) -> list[tuple[int, bytes]]:
    """The fields of the signed part, without the version."""
    tag, content = next(_elements(certificate), (0, b""))
    signed_tag, signed = next(_elements(content), (0, b"")) if tag == _SEQUENCE else (0, b"")
    fields = list(_elements(signed)) if signed_tag == _SEQUENCE else []
    if fields and fields[0][0] == _VERSION:
        del fields[0]
    if len(fields) < 6:
        raise ValueError("not a certificate")
    return fields


def _attribute(data: bytes) -> str:
    """`CN=value`, or `1.2.840.113549.1.9.1=#16...`."""
    parts = list(_elements(data))
    if len(parts) != 2 or parts[0][0] != _OID:
        raise ValueError("the subject of a certificate is invalid")
    oid = _oid(parts[0][1])
    tag, value = parts[1]
    name, encoding = _NAMES.get(oid), _STRINGS.get(tag)
    if name is None or encoding is None:
        return f"{name or oid}=#{_encoded(tag, value).hex()}"
    try:
        text = value.decode(encoding)
    except UnicodeDecodeError:
        raise ValueError("the subject of a certificate is invalid") from None
    return f"{name}={_escape(text)}"


def _escape(text: str) -> str:
    """As Java's AVA.toRFC2253String: leading and trailing spaces too."""
    inner = text.strip(" ")
    if not inner:
        return "\\ " * len(text)
    leading, trailing = len(text) - len(text.lstrip(" ")), len(text) - len(text.rstrip(" "))
    escaped = "".join(
        f"\\{character}" if character in _ESCAPED else character for character in inner
    ).replace("\0", "\\00")
    return "\\ " * leading + escaped + "\\ " * trailing


def _encoded(tag: int, value: bytes) -> bytes:
    size = len(value)
    if size < 0x80:
        return bytes((tag, size)) + value
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + value


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(tag, content) of DER elements that follow one another. Raises ValueError."""
    position = 0
    while position < len(data):
        if position + 2 > len(data):
            raise ValueError("a certificate ends early")
        tag, size = data[position], data[position + 1]
        position += 2
        if size >= 0x80:
            count = size & 0x7F
            if not 1 <= count <= 4 or position + count > len(data):
                raise ValueError("a certificate has an invalid length")
            size = int.from_bytes(data[position : position + count], "big")
            position += count
        if position + size > len(data):
            raise ValueError("a certificate ends early")
        yield tag, data[position : position + size]
        position += size


def _oid(data: bytes) -> str:
    numbers: list[int] = []
    number = 0
    for byte in data:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    if not numbers:
        raise ValueError("a certificate has an empty object identifier")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))
