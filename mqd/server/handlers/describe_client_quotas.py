"""DescribeClientQuotas (key 48), versions 0 to 1: the quotas of the entities that match a filter.

v1 flexible. This node responds from its own metadata, as Apache Kafka does.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from mqd.controller.image import MetadataImage
from mqd.errors import ErrorCode, MqError
from mqd.security.acls import Operation
from mqd.security.quotas import CLIENT_ENTITY, IP_ENTITY, USER_ENTITY, QuotaEntity
from mqd.server.authorization import require_cluster
from mqd.server.context import Context
from mqd.server.slices import finished_soon


class MatchType(IntEnum):
    """Kafka's numbers."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


class _Filter(NamedTuple):
    names: Mapping[str, str | None]
    """Types that an entity must have with this name; None is the default."""
    types: frozenset[str]
    """Types that an entity must have with any name."""
    strict: bool
    """It must have no other types."""

    def matches(self, entity: QuotaEntity) -> bool:
        if self.strict and len(entity) != len(self.names) + len(self.types):
            return False
        of_entity = dict(entity)
        return self.types <= of_entity.keys() and all(
            kind in of_entity and of_entity[kind] == name for kind, name in self.names.items()
        )


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    require_cluster(context, Operation.DESCRIBE_CONFIGS)
    wanted = _filter_of(request)
    entries = await finished_soon(_entries(context.node.image, wanted))
    return {"error_code": ErrorCode.NONE, "error_message": "", "entries": entries}


def _filter_of(request: Any) -> _Filter:
    names: dict[str, str | None] = {}
    types: set[str] = set()
    for component in request.components:
        kind = component.entity_type
        if not kind:
            raise _invalid("Invalid empty entity type.")
        if kind in names or kind in types:
            raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in (USER_ENTITY, CLIENT_ENTITY, IP_ENTITY):
            raise MqError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        _check_match(component)
        if component.match_type == MatchType.SPECIFIED:
            types.add(kind)
        else:
            names[kind] = component.match
    asked = names.keys() | types
    if IP_ENTITY in asked and len(asked) > 1:
        raise _invalid(
            "Invalid entity filter component combination. IP filter component should not be used "
            "with user or clientId filter component."
        )
    return _Filter(names, frozenset(types), request.strict)


def _check_match(component: Any) -> None:
    match component.match_type, component.match:
        case MatchType.EXACT, None:
            raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
        case (MatchType.EXACT, _) | (MatchType.DEFAULT, None) | (MatchType.SPECIFIED, None):
            pass
        case (MatchType.DEFAULT | MatchType.SPECIFIED) as number, _:
            raise _invalid(
                f"Request specified MATCH_TYPE_{MatchType(number).name}, but also specified a "
                "match string."
            )
        case number, _:
            raise _invalid(f"Unknown match type {number}")


def _entries(
    image: MetadataImage, wanted: _Filter
) -> Generator[int, None, list[Mapping[str, Any]]]:
    rows: list[Mapping[str, Any]] = []
    for entity, quotas in list(image.client_quotas.items()):
        if wanted.matches(entity):
            rows.append(
                {
                    "entity": entity_rows(entity),
                    "values": [{"key": key, "value": value} for key, value in quotas.items()],
                }
            )
        yield 1
    return rows


def entity_rows(entity: QuotaEntity) -> list[dict[str, Any]]:
    """An entity in a response, here and in AlterClientQuotas."""
    return [{"entity_type": kind, "entity_name": name} for kind, name in entity]


def _invalid(message: str) -> MqError:
    return MqError(ErrorCode.INVALID_REQUEST, message)


def failed(request: Any, error: MqError) -> dict[str, Any]:
    return {"error_code": error.code, "error_message": error.message or None, "entries": None}
