"""Users that do not exist look like users that do."""

from __future__ import annotations

from collections import Counter

from mqd.security.scram import FakeCredentials, text_of_bits
from mqd.security.scram_credentials import ScramCredential, ScramMechanism
from mqd.security.scram_shapes import ScramShapes

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
KAFKA_SALT = text_of_bits((1 << 130) - 1).encode()
NAMES = [f"nobody-{number}" for number in range(1_000)]


def credential(iterations: int, salt: bytes = KAFKA_SALT) -> ScramCredential:
    return ScramCredential(iterations, salt, b"stored", b"server")


def seen(shapes: ScramShapes, mechanism: ScramMechanism = SHA_256) -> dict[str, ScramCredential]:
    fakes = FakeCredentials(b"secret of the cluster", lambda: shapes)
    return {name: fakes.of(name, mechanism) for name in NAMES}


def test_without_credentials_they_have_those_of_kafkas_tools() -> None:
    for fake in seen(ScramShapes()).values():
        assert fake.iterations == 4_096
        assert fake.salt.isalnum() and len(fake.salt) in (24, 25, 26)


def test_iterations_are_as_frequent_as_among_existing_users() -> None:
    shapes = ScramShapes()
    for number in range(10):
        shapes.add(SHA_256, credential(8_192 if number < 3 else 4_096))
    shapes.add(SHA_512, credential(16_384))
    found = Counter(fake.iterations for fake in seen(shapes).values())
    assert found.keys() == {4_096, 8_192}
    assert 250 < found[8_192] < 350
    assert {fake.iterations for fake in seen(shapes, SHA_512).values()} == {16_384}


def test_salts_have_the_form_of_those_of_existing_users() -> None:
    shapes = ScramShapes()
    shapes.add(SHA_256, credential(4_096, b"\xff" * 64))
    found = seen(shapes)
    assert {len(fake.salt) for fake in found.values()} == {64}
    assert len({fake.salt for fake in found.values()}) == len(NAMES)
    assert found == seen(shapes), "the same at each attempt"
    # a text that is no number of 130 bits, and one with capitals
    for salt in (b"z" * 26, KAFKA_SALT.upper()):
        shapes = ScramShapes()
        shapes.add(SHA_256, credential(4_096, salt))
        assert {len(fake.salt) for fake in seen(shapes).values()} == {26}
        assert any(not fake.salt.isalnum() for fake in seen(shapes).values())


def test_one_more_credential_changes_few_names() -> None:
    shapes = ScramShapes()
    for number in range(100):
        shapes.append(SHA_256, credential(4_096 + number % 2 * 4_096))
    before = seen(shapes)
    shapes.add(SHA_256, credential(4_096))
    after = seen(shapes)
    assert sum(before[name] != after[name] for name in NAMES) < 20


def test_removed_credentials_do_not_count() -> None:
    shapes = ScramShapes()
    for number in (4_096, 8_192, 4_096):
        shapes.append(SHA_256, credential(number))
    shapes.remove(SHA_256, credential(4_096))
    shapes.remove(SHA_256, credential(4_096))
    assert {fake.iterations for fake in seen(shapes).values()} == {8_192}
    shapes.remove(SHA_256, credential(8_192))
    assert shapes.at(SHA_256, 0, 256) is None
