"""The quota `controller_mutation_rate` (KIP-599) in CreateTopics, CreatePartitions and
DeleteTopics.

The controller counts, for the clients of all nodes, as in Apache Kafka: a client that spreads its
requests over the nodes has one share. A node that forwards a request adds the identity of its
client, in tagged fields that only the peer listener honors. The response has the throttle time; the
node that has the client's connection mutes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple

from mqd.errors import ErrorCode
from mqd.protocol.apis import by_key
from mqd.protocol.slices import Slices
from mqd.security.principal import parse_principal
from mqd.security.quotas import CONTROLLER_MUTATION_RATE
from mqd.server.context import PEER, Context
from mqd.server.handlers.admin import at_controller
from mqd.server.portions import with_fields

THROTTLED: Final = {
    "error_code": ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    "error_message": "The throttling quota has been exceeded.",
}
"""Fields of the row of a topic that is refused."""


class Counted(NamedTuple):
    """The rows of a request after they have been counted."""

    allowed: list[Any]
    refused: list[Any]
    throttle_ms: int
    """For a client of another node. Clients of this node are already throttled."""


async def at_counting_controller(
    context: Context,
    request: Any,
    here: Callable[[], Awaitable[Mapping[str, Any]]],
    timeout_ms: int,
) -> Mapping[str, Any]:
    """As `at_controller`: the controller gets the identity of the client."""
    if context.listener == PEER:
        return await here()
    api = by_key(context.header.api_key)
    assert api is not None
    assert api.flexible_from is not None
    version = context.header.api_version
    forwarded = with_fields(  # also overwrites what a client may have sent in these fields
        request,
        client_principal=str(context.principal),
        client_id=context.header.client_id or "",
        client_api_version=version,
    )
    if CONTROLLER_MUTATION_RATE in context.node.quotas.keys:
        version = max(version, api.flexible_from)  # earlier ones have no tagged fields
    response = await at_controller(context, forwarded, here, timeout_ms, version=version)
    context.throttle(response.get("throttle_time_ms", 0))
    return response


def without_throttled(
    context: Context,
    request: Any,
    rows: Sequence[Any],
    mutations_of: Callable[[Any], int],
    strict_since: int,
    *,
    topic_of: Callable[[Any], Hashable] = attrgetter("name"),
) -> Slices[Counted]:
    """The rows that the client's quota allows, and the others. `mutations_of(row)`: how many
    partitions it creates or deletes. Before version `strict_since` of the API, all are allowed, and
    the client is only throttled. Call it on the controller.

    All rows of a topic (`topic_of`) that is named twice are allowed: the controller must see both,
    and refuse them. They were not authorized, so a single one of them must not get there (I53).
    """
    quotas = context.node.quotas
    is_forwarded = context.listener == PEER
    if CONTROLLER_MUTATION_RATE not in quotas.keys or (
        is_forwarded and not request.client_principal
    ):
        return Counted(list(rows), [], 0)
    if is_forwarded:
        version = request.client_api_version
        principal = parse_principal(request.client_principal)
        mutate_for = partial(quotas.mutate_for, principal, request.client_id)
    else:
        version = context.header.api_version
    is_strict = version >= strict_since
    counted = Counted([], [], 0)
    times = Counter(map(topic_of, rows))
    for row in rows:
        yield 1
        mutations = mutations_of(row) if times[topic_of(row)] == 1 else 0
        is_allowed = True
        if mutations and is_forwarded:
            is_allowed, throttle_ms = mutate_for(mutations, context.now, strict=is_strict)
            counted = counted._replace(throttle_ms=max(counted.throttle_ms, throttle_ms))
        elif mutations:
            is_allowed = context.mutate(mutations, strict=is_strict)
        (counted.allowed if is_allowed else counted.refused).append(row)
    return counted
