"""Client quotas (KIP-546, KIP-599, KIP-612). Validation and codes are Apache Kafka 4.3's.

Keys of users and client ids: producer_byte_rate, consumer_byte_rate, request_percentage and
controller_mutation_rate. Key of addresses: connection_creation_rate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final, NamedTuple

from mqd.controller.commands import check_fits
from mqd.controller.decision_options import DecisionOptions
from mqd.controller.image import MetadataImage
from mqd.controller.metadata_version import check_security_allowed
from mqd.controller.records import MetadataRecord, SetClientQuotas
from mqd.controller.result import ControllerResult
from mqd.controller.size import Room
from mqd.errors import ErrorCode, MqError
from mqd.security.quotas import (
    CLIENT_ENTITY,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP_ENTITY,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER_ENTITY,
    QuotaEntity,
)

_FRACTION: Final = 1e-6
"""A whole number may differ so much from one."""


class _Whole(NamedTuple):
    """The values of a key are whole numbers."""

    name: str
    largest: int


_INT: Final = _Whole("an INT", 2**31 - 1)
_LONG: Final = _Whole("a LONG", 2**63 - 1)
_OF_CLIENTS: Final[Mapping[str, _Whole | None]] = {
    PRODUCER_BYTE_RATE: _LONG,
    CONSUMER_BYTE_RATE: _LONG,
    REQUEST_PERCENTAGE: None,
    CONTROLLER_MUTATION_RATE: None,
}
_OF_ADDRESSES: Final[Mapping[str, _Whole | None]] = {CONNECTION_CREATION_RATE: _INT}


class QuotaAlteration(NamedTuple):
    """The changes of one entity."""

    entity: QuotaEntity
    changes: tuple[tuple[str, float | None], ...]
    """A value of None removes the key."""


@dataclass(frozen=True, slots=True)
class AlterClientQuotas:
    """Set and remove quotas, or only validate that."""

    alterations: tuple[QuotaAlteration, ...]
    validate_only: bool = False


class QuotasAltered(NamedTuple):
    """The result for one entity."""

    entity: QuotaEntity
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


def quota_entity(parts: Mapping[str, str | None]) -> QuotaEntity:
    """The entity of types and names."""
    return tuple(sorted(parts.items()))


def decide_alter_client_quotas(
    image: MetadataImage, op: AlterClientQuotas, options: DecisionOptions
) -> ControllerResult:
    """Reply: one QuotasAltered for each different entity, in the order of the request. Each entity
    stands alone.
    """
    check_security_allowed(image)
    counts = Counter(alteration.entity for alteration in op.alterations)
    room = Room(image, options.image_bytes_max)
    records: list[MetadataRecord] = []
    results: dict[QuotaEntity, QuotasAltered] = {}
    for entity, changes in op.alterations:
        try:
            # Apache Kafka reports this, too, but makes the first of the changes.
            if counts[entity] > 1 or len(dict(changes)) < len(changes):
                raise _invalid(f"Ignoring duplicate entity {_shown(entity)}")
            record = _record(image, entity, changes)
            if record.changes:
                check_fits(record)
                room.take(record)
                records.append(record)
        except MqError as error:
            results[entity] = QuotasAltered(entity, error.code, error.message)
            continue
        results[entity] = QuotasAltered(entity)
    return ControllerResult(() if op.validate_only else tuple(records), tuple(results.values()))


def _record(
    image: MetadataImage, entity: QuotaEntity, changes: tuple[tuple[str, float | None], ...]
) -> SetClientQuotas:
    keys = _keys_of(entity)
    present = image.client_quotas.get(entity, {})
    for key, value in changes:
        if value is not None:
            _check_value(keys, key, value)
    return SetClientQuotas(
        entity, tuple((key, value) for key, value in changes if present.get(key) != value)
    )


def _keys_of(entity: QuotaEntity) -> Mapping[str, _Whole | None]:
    """The keys that an entity may have. Raises INVALID_REQUEST for an invalid entity."""
    if not entity:
        raise _invalid("Invalid empty client quota entity")
    names = dict(entity)
    for kind, name in entity:
        if kind not in (USER_ENTITY, CLIENT_ENTITY, IP_ENTITY):
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
    if IP_ENTITY not in names:
        return _OF_CLIENTS
    if len(names) > 1:
        raise _invalid(
            "Invalid quota entity combination, IP entity shouldnot be combined with User or "
            "ClientId"
        )
    address = names[IP_ENTITY]
    if address is not None and not _is_address(address):
        # no names, as in Apache Kafka: the controller would wait for a name server
        raise _invalid(f"{address} is not a valid IP or resolvable host.")
    return _OF_ADDRESSES


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _check_value(keys: Mapping[str, _Whole | None], key: str, value: float) -> None:
    if key not in keys:
        raise _invalid(f"Invalid configuration key {key}")
    if not value > 0:
        raise _invalid(f"Quota {key} must be greater than 0")
    whole = keys[key]
    if whole is None:
        return
    if value > float(whole.largest):  # as Java: 2**63 is not larger than a LONG
        raise _invalid(f"Proposed value for {key} is too large for {whole.name}.")
    if abs(value - round(value)) > _FRACTION:
        raise _invalid(f"{key} cannot be a fractional value.")


def _shown(entity: QuotaEntity) -> str:
    """As Apache Kafka shows it."""
    names = ", ".join(f"{kind}={'null' if name is None else name}" for kind, name in entity)
    return f"ClientQuotaEntity(entries={{{names}}})"


def _invalid(message: str) -> MqError:
    return MqError(ErrorCode.INVALID_REQUEST, message)
