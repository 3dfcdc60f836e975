"""Large messages are encoded into chunks, large values are not copied, and rows are made one by
one.
"""

from __future__ import annotations

from mqd.limits import KIB
from mqd.protocol import apis
from mqd.protocol.chunks import Chunks
from mqd.protocol.slices import Rows, all_slices


def test_chunks_are_in_order_and_large_values_are_not_copied() -> None:
    chunks = Chunks()
    large = bytes(range(256)) * 64
    written: list[bytes | memoryview] = [
        b"a" * 10,
        large,
        b"b" * KIB,
        memoryview(large),
        *[b"c" * KIB] * 200,
        b"d",
    ]
    for data in written:
        chunks.write(data)
    taken = chunks.take()
    assert b"".join(taken) == b"".join(written) and chunks.size == len(b"".join(written))
    assert taken[1] is large
    assert all(len(chunk) <= 65 * KIB for chunk in taken)


def test_rows_are_made_while_they_are_encoded() -> None:
    made = []

    def member(number: int) -> dict[str, object]:
        made.append(number)
        return {"member_id": f"m{number}"}

    api = apis.by_name("share_group_describe")
    group = {"group_id": "g", "members": Rows(range(1000), member)}
    chunks = Chunks()
    work = api.encode_response_in_slices(1, {"groups": [group]}, chunks)
    next(work)
    assert len(made) < 10
    all_slices(work)
    assert made == list(range(1000))
    whole = {"groups": [{**group, "members": [member(number) for number in range(1000)]}]}
    assert b"".join(chunks.take()) == api.encode_response(1, whole)
