"""Compares a replica with the committed batches of its partition (I1 to I5)."""

from __future__ import annotations

from bisect import bisect_left

from mqd.testing.probes.shadows import Committed, Shadow
from mqd.testing.violation import Violation


def commit_batches(
    own: Shadow, committed: Committed, high_watermark: int, leader_epoch: int, where: str
) -> None:
    """Add the batches that a leader's high watermark has passed to the committed ones."""
    for batch in own.batches[bisect_left(own.batches, (committed.end,)) :]:
        if batch.next_offset > high_watermark:
            break
        committed.batches.append(batch)
        committed.leader_epochs.append(leader_epoch)
    if committed.end != high_watermark:
        raise Violation(
            f"I3: the high watermark of {where} is {high_watermark}, inside a batch or "
            "beyond its file"
        )


def compare(shadow: Shadow, committed: Committed, end: int, what: str) -> None:
    """The replica must have the committed batches from its log start to `end`.

    Batches below its log start offset may differ. The leader has deleted those offsets, so no
    client reads them here, and their segment is removed soon.
    """
    if not committed.batches or end <= committed.first_offset:
        return
    if committed.cleaned_to:
        _compare_compacted(shadow, committed, end, what)
        return
    first = bisect_left(
        committed.batches, (shadow.batches[0].base_offset if shadow.batches else shadow.start,)
    )
    at = first + shadow.agreed
    not_compared: int | None = None
    while at < len(committed.batches) and committed.batches[at].next_offset <= end:
        ours = shadow.batches[at - first] if at - first < len(shadow.batches) else None
        theirs = committed.batches[at]
        is_deleted = theirs.next_offset <= shadow.log_start_offset
        if is_deleted and (ours is None or ours[:4] != theirs[:4]):
            not_compared = at if not_compared is None else not_compared
            at += 1
            continue
        if ours is None:
            raise Violation(
                f"{what} ends at {shadow.end}, and {theirs.next_offset} and more was committed"
            )
        if ours[:4] != theirs[:4]:
            raise Violation(
                f"{what} has {ours[:4]}, and {theirs[:4]} was committed (base, next, "
                "leader epoch, CRC)"
            )
        at += 1
    # If its log start goes back, they are compared.
    shadow.agreed = (at if not_compared is None else not_compared) - first


def _compare_compacted(shadow: Shadow, committed: Committed, end: int, what: str) -> None:
    """A replica has no record that was not committed. Above the compacted offsets it has no
    gaps.
    """
    # earlier batches were compared, and the log was not rewritten since
    first = (shadow.compared_below,)
    ours = {
        batch.base_offset: batch
        for batch in shadow.batches[bisect_left(shadow.batches, first) :]
        if batch.next_offset <= end
    }
    start = shadow.batches[0].base_offset if shadow.batches else shadow.start
    for theirs in committed.batches[bisect_left(committed.batches, first) :]:
        if theirs.next_offset > end:
            break
        batch = ours.pop(theirs.base_offset, None)
        if batch is None:
            if theirs.base_offset >= max(committed.cleaned_to, start):
                raise Violation(
                    f"{what} has no batch at {theirs.base_offset}, which was committed, "
                    "above all that is compacted"
                )
        elif batch[1:3] != theirs[1:3] or (
            batch.crc != theirs.crc and batch.base_offset >= committed.cleaned_to
        ):
            raise Violation(
                f"{what} has {batch[:4]}, and {theirs[:4]} was committed (base, next, "
                "leader epoch, CRC)"
            )
        shadow.compared_below = theirs.next_offset
    if any(base_offset >= committed.first_offset for base_offset in ours):
        raise Violation(f"{what} has a batch at {min(ours)} that no leader committed")
