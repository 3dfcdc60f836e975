# mypy: disallow-subclassing-any=False
"""Arrays, structures and tagged fields of every message: constructs made of those in primitives.py,
with the same invariants.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from construct import Construct, Container, Struct, Subconstruct

from mqd import limits
from mqd.errors import ProtocolError
from mqd.protocol.primitives import (
    Blob,
    Cursor,
    Length,
    Number,
    String,
    Varint,
    check_null,
    pack_unsigned_varint,
    read_unsigned_varint,
)

# -- arrays

_SLICE_ELEMENTS = 100
"""Elements encoded or decoded in one slice: less than a millisecond."""


class Array(Subconstruct):
    """An array: the count, then the elements. Parsed into a list, built from any sized
    collection.
    """

    def __init__(self, length: Length, element: Construct, *, nullable: bool) -> None:
        super().__init__(element)
        self.length = length
        self.nullable = nullable
        self.element_weight = limits.STRUCTURE_ELEMENTS if isinstance(element, Structure) else 1
        self.element_bytes_min = bytes_min(element)
        assert self.element_bytes_min > 0, (
            "elements without bytes: their number would have no bound"
        )

    def _parse(self, stream: Cursor, context: Any, path: str) -> list[Any] | None:
        count = self._read_count(stream)
        return None if count < 0 else self._parse_elements(count, stream, context, path)

    def parse_in_slices(self, stream: Cursor) -> Generator[int, None, list[Any] | None]:
        """The same as `_parse`, in slices: yields the number of elements and of tagged fields that
        were decoded since the last yield.
        """
        count = self._read_count(stream)
        if count < 0:
            return None
        elements: list[Any] = []
        if isinstance(self.subcon, Structure) and self.subcon.has_arrays:
            for _ in range(count):
                elements.append((yield from self.subcon.parse_in_slices(stream)))
                yield 1
            return elements
        while len(elements) < count:
            before = len(elements) + stream.tagged_fields
            if isinstance(self.subcon, Structure) and self.subcon.flexible:
                parse = self.subcon._parse
                while (
                    len(elements) < count
                    and len(elements) + stream.tagged_fields < before + _SLICE_ELEMENTS
                ):
                    elements.append(parse(stream, None, ""))
            else:
                piece = min(_SLICE_ELEMENTS, count - len(elements))
                elements += self._parse_elements(piece, stream, None, "")
            yield len(elements) + stream.tagged_fields - before
        return elements

    def _read_count(self, stream: Cursor) -> int:
        """The number of elements, checked against the remaining bytes and the limits; -1 for
        null.
        """
        count = self.length.read(stream)
        if count < 0:
            check_null(self.nullable, stream)
            return -1
        left = stream.end - stream.position
        if count * self.element_bytes_min > left:
            raise ProtocolError(f"array of {count} elements in {left} bytes at {stream.position}")
        if count > limits.ARRAY_ELEMENTS_MAX:
            raise ProtocolError(
                f"array of {count} elements at {stream.position}; at most "
                f"{limits.ARRAY_ELEMENTS_MAX} are taken"
            )
        stream.elements_left -= count * self.element_weight
        if stream.elements_left < 0:
            raise ProtocolError(f"too many elements in one message at {stream.position}")
        return count

    def _parse_elements(self, count: int, stream: Cursor, context: Any, path: str) -> list[Any]:
        if type(self.subcon) is String:
            return self.subcon.parse_several(count, stream)
        parse = self.subcon._parse
        return [parse(stream, context, path) for _ in range(count)]

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> None:
        if obj is None:
            assert self.nullable, "null in an array that cannot be null"
            stream.write(self.length.pack(-1))
            return
        stream.write(self.length.pack(len(obj)))
        self._build_elements(obj, stream, context, path)

    def _build_elements(self, obj: Any, stream: Any, context: Any, path: str) -> None:
        if type(self.subcon) is String:
            self.subcon.build_several(obj, stream)
            return
        build = self.subcon._build
        for element in obj:
            build(element, stream, context, path)

    def build_in_slices(self, obj: Any, stream: Any) -> Iterator[int]:
        """The same as `_build`, in slices: yields the number of elements written since the last
        yield.
        """
        if obj is None or (not isinstance(self.subcon, Structure) and len(obj) <= _SLICE_ELEMENTS):
            self._build(obj, stream, None, "")
            return
        stream.write(self.length.pack(len(obj)))
        if isinstance(self.subcon, Structure) and self.subcon.has_rows:
            for element in obj:
                yield from self.subcon.build_in_slices(element, stream)
                yield 1
            return
        elements = iter(obj)
        while piece := list(islice(elements, _SLICE_ELEMENTS)):
            self._build_elements(piece, stream, None, "")
            yield len(piece)


class NumberArray(Array):
    """An array of fixed-size numbers, packed by one call."""

    def build_in_slices(self, obj: Any, stream: Any) -> Iterator[int]:
        """In one slice: 100,000 numbers take a few milliseconds."""
        self._build(obj, stream, None, "")
        yield from ()

    def _parse_elements(self, count: int, stream: Cursor, context: Any, path: str) -> list[Any]:
        start = stream.advance(count * self.subcon.length)
        return list(struct.unpack_from(f">{count}{self.subcon.letter}", stream.view, start))

    def _build_elements(self, obj: Any, stream: Any, context: Any, path: str) -> None:
        stream.write(struct.pack(f">{len(obj)}{self.subcon.letter}", *obj))


# -- structures


class Member(NamedTuple):
    """One field of a structure in one version. A tagged field is written only if it differs from
    its default.
    """

    name: str
    construct: Construct
    default: Any
    tag: int | None = None


class Run(Construct):
    """Adjacent numbers of a structure, packed by one call. Its value is the tuple of them."""

    def __init__(self, members: Sequence[Member]) -> None:
        super().__init__()
        self._struct = struct.Struct(">" + "".join(member.construct.letter for member in members))

    def _parse(self, stream: Cursor, context: Any, path: str) -> tuple[Any, ...]:
        return self._struct.unpack_from(stream.view, stream.advance(self._struct.size))

    def _build(self, obj: Iterable[Any], stream: Any, context: Any, path: str) -> None:
        stream.write(self._struct.pack(*obj))


class Structure(Struct):
    """construct's Struct for fields that never refer to one another.

    It omits what such fields do not need: a context and a path for each structure, and one call for
    each number. That saves four fifths of the time. Parsing starts from `absent()`, the values of
    the fields that may not be in the bytes.
    """

    def __init__(
        self, members: Sequence[Member], *, flexible: bool, absent: Callable[[], Container]
    ) -> None:
        plain = [member for member in members if member.tag is None]
        tagged = {member.tag: member for member in members if member.tag is not None}
        assert flexible or not tagged
        assert len(plain) + len(tagged) == len(members)
        super().__init__(*(member.name / member.construct for member in plain))
        self.members = tuple(members)
        self.flexible = flexible
        self._absent = absent
        self._parsers: list[tuple[str | tuple[str, ...], Callable[..., Any]]] = []
        self._builders: list[
            tuple[str | tuple[tuple[str, Any], ...], Any, Callable[..., None]]
        ] = []
        for run in _runs(plain):
            first = run[0]
            if len(run) == 1:
                self._parsers.append((first.name, first.construct._parse))
                self._builders.append((first.name, first.default, first.construct._build))
            else:
                packed = Run(run)
                self._parsers.append((tuple(member.name for member in run), packed._parse))
                self._builders.append(
                    (tuple((member.name, member.default) for member in run), None, packed._build)
                )
        self._tagged = dict(sorted(tagged.items()))
        self.has_rows: bool = any(
            (isinstance(one.construct, Array) and not isinstance(one.construct, NumberArray))
            or (isinstance(one.construct, Structure) and one.construct.has_rows)
            for one in plain
        )
        """Whether it contains arrays of structures or strings, which can make a response large."""
        self.has_arrays = any(isinstance(one.construct, Array) for one in plain)

    def _parse(self, stream: Cursor, context: Any, path: str) -> Container:
        container = self._absent()
        name: str | tuple[str, ...] = ""
        try:
            for name, parse in self._parsers:
                if name.__class__ is tuple:
                    dict.update(container, zip(name, parse(stream, context, path), strict=True))
                else:
                    container[name] = parse(stream, context, path)
            if self.flexible:
                name = "tagged fields"
                self._parse_tagged(container, stream, context, path)
        except ProtocolError as error:
            raise ProtocolError(f"{_member_name(name)}: {error}") from None
        return container

    def parse_in_slices(self, stream: Cursor) -> Generator[int, None, Container]:
        """See Array."""
        container = self._absent()
        name: str | tuple[str, ...] = ""
        try:
            for name, parse in self._parsers:
                if name.__class__ is tuple:
                    dict.update(container, zip(name, parse(stream, None, ""), strict=True))
                elif isinstance(array := getattr(parse, "__self__", None), Array):
                    container[name] = yield from array.parse_in_slices(stream)
                else:
                    container[name] = parse(stream, None, "")
            if self.flexible:
                name = "tagged fields"
                before = stream.tagged_fields
                self._parse_tagged(container, stream, None, "")
                if stream.tagged_fields > before:
                    yield stream.tagged_fields - before
        except ProtocolError as error:
            raise ProtocolError(f"{_member_name(name)}: {error}") from None
        return container

    def _parse_tagged(self, container: Container, stream: Cursor, context: Any, path: str) -> None:
        for member, size in _tagged_fields(stream, self._tagged):
            end = stream.end
            stream.end = stream.position + size
            container[member.name] = member.construct._parse(stream, context, path)
            if stream.position != stream.end:
                raise ProtocolError(
                    f"{member.name} leaves {stream.end - stream.position} of its {size} bytes"
                )
            stream.end = end

    def _build(self, obj: Mapping[str, Any], stream: Any, context: Any, path: str) -> None:
        get = obj.get
        name: Any = ""
        try:
            for name, default, build in self._builders:
                if name.__class__ is tuple:
                    build([get(key, value) for key, value in name], stream, context, path)
                else:
                    build(get(name, default), stream, context, path)
            if self.flexible:
                name = "tagged fields"
                self._build_tagged(obj, stream)
        except Exception as error:
            error.add_note(f"while encoding {name}")
            raise

    def build_in_slices(self, obj: Mapping[str, Any], stream: Any) -> Iterator[int]:
        """See Array."""
        name: Any
        for name, default, build in self._builders:
            if name.__class__ is tuple:
                build([obj.get(key, value) for key, value in name], stream, None, "")
            elif isinstance(inner := getattr(build, "__self__", None), Array) or (
                isinstance(inner, Structure) and inner.has_rows
            ):
                yield from inner.build_in_slices(obj.get(name, default), stream)
            else:
                build(obj.get(name, default), stream, None, "")
        if self.flexible:
            self._build_tagged(obj, stream)

    def _build_tagged(self, obj: Mapping[str, Any], stream: Any) -> None:
        written = []
        for tag, member in self._tagged.items():
            if member.name in obj:
                value = member.construct.build(obj[member.name])
                if value != member.construct.build(member.default):
                    written.append((tag, value))
        stream.write(pack_unsigned_varint(len(written)))
        for tag, value in written:
            stream.write(pack_unsigned_varint(tag) + pack_unsigned_varint(len(value)) + value)


def _member_name(name: str | tuple[str, ...]) -> str:
    """A field, or the first and the last of adjacent numbers."""
    return name if isinstance(name, str) else f"{name[0]}..{name[-1]}"


class NullableStructure(Subconstruct):
    """A structure after one byte: 1, or -1 for null (KIP-893)."""

    def _parse(self, stream: Cursor, context: Any, path: str) -> Container | None:
        return (
            None
            if stream.view[stream.advance(1)] & 0x80
            else self.subcon._parse(stream, context, path)
        )

    def _build(self, obj: Mapping[str, Any] | None, stream: Any, context: Any, path: str) -> None:
        if obj is None:
            stream.write(b"\xff")
        else:
            stream.write(b"\x01")
            self.subcon._build(obj, stream, context, path)


def skip_tagged_fields(stream: Cursor) -> None:
    """Skip tagged fields, all unknown, as in a header."""
    for _ in _tagged_fields(stream, {}):
        raise AssertionError("no tag is known")


def _tagged_fields(stream: Cursor, known: Mapping[int, Member]) -> Iterable[tuple[Member, int]]:
    """Yield each known field and its size, with the cursor at its start; skip the others
    (KIP-482).
    """
    count = read_unsigned_varint(stream)
    if count > limits.TAGGED_FIELDS_MAX:
        raise ProtocolError(f"{count} tagged fields; at most {limits.TAGGED_FIELDS_MAX} are taken")
    stream.tagged_fields += count
    previous = -1
    for _ in range(count):
        tag = read_unsigned_varint(stream)
        if tag <= previous:
            raise ProtocolError(f"tag {tag} after tag {previous}")
        previous = tag
        size = read_unsigned_varint(stream)
        start = stream.advance(size)
        member = known.get(tag)
        if member is not None:
            stream.position = start
            yield member, size


def _runs(members: Sequence[Member]) -> Iterable[list[Member]]:
    """Split into runs of adjacent numbers; each other field is alone."""
    run: list[Member] = []
    for member in members:
        if run and not (
            isinstance(member.construct, Number) and isinstance(run[-1].construct, Number)
        ):
            yield run
            run = []
        run.append(member)
    if run:
        yield run


def bytes_min(construct: Construct) -> int:
    """The minimum size of a value, in bytes."""
    if isinstance(construct, Structure):
        return construct.flexible + sum(
            bytes_min(member.construct) for member in construct.members if member.tag is None
        )
    if isinstance(construct, String | Blob | Array):
        return construct.length.bytes_min
    if isinstance(construct, NullableStructure | Varint):
        return 1
    size: int = construct.sizeof()
    return size
