"""SCRAM credentials of users (KIP-554). Validation and codes are Apache Kafka 4.3's.

The request has salted passwords. The metadata has only the keys that verify a proof.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from mqd.controller.decision_options import DecisionOptions
from mqd.controller.image import MetadataImage
from mqd.controller.metadata_version import check_security_allowed
from mqd.controller.records import DeleteScramCredential, MetadataRecord, SetScramCredential
from mqd.controller.result import ControllerResult
from mqd.controller.size import Room
from mqd.errors import ErrorCode, MqError
from mqd.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, keys_of_salted_password
from mqd.security.scram_credentials import ScramCredential, ScramMechanism

_SECRET_BYTES_MAX: Final = 1024
"""Salt or salted password. Kafka's tools send 16 to 64 bytes."""


@dataclass(frozen=True, slots=True)
class ScramDeletion:
    user: str
    mechanism: ScramMechanism


@dataclass(frozen=True, slots=True)
class ScramUpsertion:
    """`repr` shows no secret."""

    user: str
    mechanism: ScramMechanism
    iterations: int
    salt: bytes = field(repr=False)
    salted_password: bytes = field(repr=False)


ScramAlteration = ScramDeletion | ScramUpsertion


@dataclass(frozen=True, slots=True)
class AlterScramCredentials:
    """Deletions first, then upsertions. A request changes one credential of a user."""

    alterations: tuple[ScramAlteration, ...]


@dataclass(frozen=True, slots=True)
class ScramAltered:
    """The result for one user."""

    user: str
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


def decide_alter_scram_credentials(
    image: MetadataImage, op: AlterScramCredentials, options: DecisionOptions
) -> ControllerResult:
    """Reply: one ScramAltered for each user, in the order of the request. Each stands alone."""
    check_security_allowed(image)
    room = Room(image, options.image_bytes_max)
    records: dict[str, MetadataRecord] = {}
    errors: dict[str, MqError] = {}
    for alteration in op.alterations:
        user = alteration.user
        if user in errors:
            continue
        try:
            if user in records:
                raise MqError(
                    ErrorCode.DUPLICATE_RESOURCE,
                    "A user credential cannot be altered twice in the same request",
                )
            record = _record(image, alteration)
            room.take(record)
        except MqError as error:
            errors[user] = error
        else:
            records[user] = record
    results = []
    for user in dict.fromkeys(alteration.user for alteration in op.alterations):
        refused = errors.get(user)
        results.append(
            ScramAltered(user)
            if refused is None
            else ScramAltered(user, refused.code, refused.message)
        )
    kept = tuple(record for user, record in records.items() if user not in errors)
    return ControllerResult(kept, tuple(results))


def _record(image: MetadataImage, alteration: ScramAlteration) -> MetadataRecord:
    user, mechanism = alteration.user, alteration.mechanism
    if not user:
        raise MqError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if mechanism is ScramMechanism.UNKNOWN:
        raise MqError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(alteration, ScramDeletion):
        if (user, mechanism) not in image.scram_credentials:
            raise MqError(
                ErrorCode.RESOURCE_NOT_FOUND,
                "Attempt to delete a user credential that does not exist",
            )
        return DeleteScramCredential(user, mechanism)
    if alteration.iterations < ITERATIONS_MIN:
        raise MqError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if alteration.iterations > ITERATIONS_MAX:
        raise MqError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if not alteration.salted_password:
        raise MqError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "The salted password must not be empty")
    if max(len(alteration.salt), len(alteration.salted_password)) > _SECRET_BYTES_MAX:
        raise MqError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"Salt and salted password may have at most {_SECRET_BYTES_MAX} bytes",
        )
    keys = keys_of_salted_password(mechanism, alteration.salted_password)
    credential = ScramCredential(
        alteration.iterations, alteration.salt, keys.stored_key, keys.server_key
    )
    return SetScramCredential(user, mechanism, credential)
