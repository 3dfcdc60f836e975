"""A broker for these tests with TLS, logins and an authorizer. For mqd and for Apache Kafka.

Clients use its SASL_SSL listener. The PLAINTEXT listener is for the preparation: ANONYMOUS may do
everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mqd.security.acls import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from tests.hostile.login import PASSWORD

GOOD: Final = "good"
"""The good client, which may produce to its topic."""
ATTACKER: Final = "attacker"
"""A user who may do everything, by ACLs."""
STRANGER: Final = "stranger"
"""A user without an ACL."""
_MODULES = "org.apache.kafka.common.security"


def options(files: Mapping[str, Path], plain: int, secure: int) -> dict[str, str]:
    """The options of a node with both listeners. `files`: of tests/tls_files.py."""
    users = " ".join(f'user_{user}="{PASSWORD}"' for user in (GOOD, ATTACKER, STRANGER))
    listener, jaas = "listener.name.sasl_ssl", "sasl.jaas.config"
    return {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_SSL://127.0.0.1:{secure}",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
        f"{listener}.plain.{jaas}": f"{_MODULES}.plain.PlainLoginModule required {users};",
        f"{listener}.scram-sha-256.{jaas}": f"{_MODULES}.scram.ScramLoginModule required;",
        f"{listener}.oauthbearer.{jaas}": (
            f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required;"
        ),
        f"{listener}.oauthbearer.sasl.oauthbearer.allow.unsigned.tokens": "true",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(files["node"]),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }


def create_acls(topic: str) -> Mapping[str, Any]:
    """A CreateAcls request: the rights of the good client on its topic, and of the attacker."""
    rights = (
        (GOOD, ResourceType.TOPIC, topic, Operation.WRITE),
        (ATTACKER, ResourceType.TOPIC, "*", Operation.ALL),
        (ATTACKER, ResourceType.GROUP, "*", Operation.ALL),
        (ATTACKER, ResourceType.TRANSACTIONAL_ID, "*", Operation.ALL),
        (ATTACKER, ResourceType.CLUSTER, CLUSTER_NAME, Operation.ALL),
    )
    return {
        "creations": [
            {
                "resource_type": kind,
                "resource_name": name,
                "resource_pattern_type": PatternType.LITERAL,
                "principal": f"User:{user}",
                "host": "*",
                "operation": operation,
                "permission_type": Permission.ALLOW,
            }
            for user, kind, name, operation in rights
        ]
    }
