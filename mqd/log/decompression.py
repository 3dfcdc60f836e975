"""The decompression of one batch whose records the broker reads. A core.

A small batch is decompressed at once, others by a worker thread (server/batch_work.py). The size is
known before, from the stream. Only gzip can state a wrong size. Then the first attempt ends at the
stated size, and the second one has the size of the limit. So `size` is never below what it takes.
"""

from __future__ import annotations

from collections.abc import Iterator

from mqd.errors import ErrorCode, MqError
from mqd.limits import (
    INSPECTED_AT_ONCE_BYTES,
    INSPECTED_BYTES_LARGEST,
    INSPECTED_BYTES_MAX,
    INSPECTED_MESSAGES,
)
from mqd.protocol.batch import (
    CODEC_MASK,
    CODEC_POSITION,
    HEADER_BYTES,
    BatchHeader,
)
from mqd.protocol.compression import Codec, decompress, stated_bytes
from mqd.protocol.record_reader import record_bytes


def bytes_max(max_message_bytes: int) -> int:
    """The maximum decompressed size of a batch of a topic that the broker inspects or compresses
    again.
    """
    return min(
        max(INSPECTED_BYTES_MAX, INSPECTED_MESSAGES * max_message_bytes), INSPECTED_BYTES_LARGEST
    )


def decompressed_bytes(view: memoryview, start: int, stop: int) -> int:
    """The size that the compressed records of the batch in [start, stop) state. 0 for a batch that
    is not compressed, or not a batch.
    """
    if start < 0 or stop - start < HEADER_BYTES:
        return 0
    codec = view[start + CODEC_POSITION] & CODEC_MASK
    if codec == Codec.NONE or codec > Codec.ZSTD:
        return 0
    return stated_bytes(Codec(codec), view[start + HEADER_BYTES : stop], INSPECTED_BYTES_LARGEST)


_RELEASED = MqError(ErrorCode.UNKNOWN_SERVER_ERROR, "the records were released")


class Decompression:
    """Decompresses the records of the batch in `view`, to at most `limit` bytes."""

    __slots__ = ("_codec", "_compressed", "_content", "_error", "_limit", "size", "slices")

    def __init__(self, view: memoryview, header: BatchHeader, limit: int) -> None:
        self._codec = Codec(header.codec)
        self._compressed: memoryview | None = view[HEADER_BYTES : header.size]
        self._limit = limit
        self._content: memoryview | None = None
        self._error: MqError | None = None
        self.size = stated_bytes(self._codec, self._compressed, limit)
        """The bytes that the next slice makes, at most."""
        self.slices: Iterator[None] = self._run()
        """The work: for a thread, or for `next` where the size is small."""

    @property
    def is_done(self) -> bool:
        return self._content is not None or self._error is not None

    @property
    def is_small(self) -> bool:
        return self.size <= INSPECTED_AT_ONCE_BYTES

    def content(self) -> memoryview:
        """The decompressed records. MqError: CORRUPT_MESSAGE for damage, MESSAGE_TOO_LARGE above
        the limit.
        """
        if self._error is not None:
            raise MqError(self._error.code, self._error.message)
        assert self._content is not None
        return self._content

    @property
    def is_released(self) -> bool:
        """Whether the content was read, or there is none."""
        return self.is_done and self._content is None

    def release(self) -> None:
        """The content was read."""
        self._content = None
        self._error = self._error or _RELEASED

    def give_up(self) -> None:
        """Nobody wants the records any more."""
        self._error = MqError(ErrorCode.NETWORK_EXCEPTION, "the client has closed the connection")
        self._compressed = self._content = None
        self.slices = iter(())

    def _run(self) -> Iterator[None]:
        assert self._compressed is not None
        try:
            if self.size < self._limit:
                try:
                    self._content = decompress(self._codec, self._compressed, max(self.size, 1))
                    return
                except MqError as error:
                    if error.code is not ErrorCode.MESSAGE_TOO_LARGE:
                        raise
                self.size = self._limit
                yield
            self._content = decompress(self._codec, self._compressed, self._limit)
        except MqError as error:
            self._error = error.with_traceback(None)  # its frames have the records
        finally:
            self._compressed = None


def records_in_place(view: memoryview, header: BatchHeader) -> bytes | memoryview:
    """The records of a batch that is not compressed. A large batch is not copied."""
    assert header.codec == Codec.NONE
    if header.size <= INSPECTED_AT_ONCE_BYTES:
        return record_bytes(view, header, INSPECTED_AT_ONCE_BYTES)
    return view[HEADER_BYTES : header.size]
