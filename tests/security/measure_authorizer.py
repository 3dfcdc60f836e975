"""How long a decision takes beside ten thousand ACLs:
`.venv/bin/python -m tests.security.measure_authorizer`.
"""

from __future__ import annotations

from time import perf_counter
from uuid import UUID

from mqd.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from mqd.security.authorizer import Authorizer
from mqd.security.principal import Principal

ASKED = 20_000


def made(acls: int) -> Authorizer:
    authorizer = Authorizer()
    for number in range(acls):
        pattern = PatternType.PREFIXED if number % 2 else PatternType.LITERAL
        authorizer.add(
            UUID(int=number),
            Acl(
                ResourceType.TOPIC,
                f"team-{number % 500}.{'x' * (number % 40)}.{number}",
                pattern,
                f"User:{number % 1000}",
                "*",
                Operation.READ,
                Permission.ALLOW,
            ),
        )
    return authorizer


def main() -> None:
    names = [f"team-{number % 500}.{'x' * (number % 40)}.{number}.t" for number in range(ASKED)]
    for acls in (0, 100, 10_000):
        authorizer = made(acls)
        start = perf_counter()
        for name in names:
            authorizer.rule("User:7", "10.0.0.1", Operation.READ, ResourceType.TOPIC, name)
        uncached = (perf_counter() - start) / ASKED
        principal = Principal("User", "7")
        authorizer.permissions(principal, "10.0.0.1").rule(Operation.READ, ResourceType.TOPIC, "t")
        start = perf_counter()
        for _ in range(ASKED):
            authorizer.permissions(principal, "10.0.0.1").rule(
                Operation.READ, ResourceType.TOPIC, "t"
            )
        cached = (perf_counter() - start) / ASKED
        print(f"{acls:6} ACLs: {uncached * 1e6:5.1f} us uncached, {cached * 1e6:5.2f} us cached")


if __name__ == "__main__":
    main()
