"""The quota `controller_mutation_rate` (KIP-599) in CreateTopics, CreatePartitions and
DeleteTopics: rows of a request that it does not allow are not sent to the controller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from mqd.errors import ErrorCode
from mqd.protocol.slices import Slices
from mqd.security.quotas import CONTROLLER_MUTATION_RATE
from mqd.server.context import PEER, Context

THROTTLED: Final = {
    "error_code": ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    "error_message": "The throttling quota has been exceeded.",
}
"""Fields of the row of a topic that is refused."""


def without_throttled(
    context: Context, rows: Sequence[Any], mutations_of: Callable[[Any], int], strict_since: int
) -> Slices[tuple[list[Any], list[Any]]]:
    """The rows that the client's quota allows, and the others. `mutations_of(row)`: how many
    partitions it creates or deletes. Before version `strict_since` of the API, all are allowed, and
    the client is only throttled.
    """
    if context.listener == PEER or CONTROLLER_MUTATION_RATE not in context.node.quotas.keys:
        return list(rows), []
    strict = context.header.api_version >= strict_since
    allowed, refused = [], []
    for row in rows:
        yield 1
        mutations = mutations_of(row)
        if not mutations or context.mutate(mutations, strict=strict):
            allowed.append(row)
        else:
            refused.append(row)
    return allowed, refused
