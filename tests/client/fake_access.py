"""ACLs, SCRAM credentials and client quotas of the model broker: mqd's own handlers and decisions,
on a metadata image of their own.
"""

from __future__ import annotations

from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

from mqd.controller.operations import DECIDE
from mqd.errors import MqError
from mqd.io.entropy import RandomEntropy
from mqd.protocol.slices import all_slices
from mqd.security.authorizer import Authorizer
from mqd.server.context import PEER
from mqd.server.handlers import (
    alter_client_quotas,
    alter_user_scram_credentials,
    create_acls,
    delete_acls,
    describe_acls,
    describe_client_quotas,
    describe_user_scram_credentials,
)
from tests.controller.cluster import Replica, with_brokers

HANDLERS: dict[int, Any] = {
    29: describe_acls,
    30: create_acls,
    31: delete_acls,
    48: describe_client_quotas,
    49: alter_client_quotas,
    50: describe_user_scram_credentials,
    51: alter_user_scram_credentials,
}


class FakeAccess:
    """Responds to the APIs of `HANDLERS`."""

    def __init__(self) -> None:
        self.replica: Replica = with_brokers(1)
        self.authorizer = Authorizer(enforces=True)
        self._controller = SimpleNamespace(submit=self._submit, check_is_controller=lambda: None)

    async def _submit(self, op: Any) -> Any:
        return self.replica.run(DECIDE[type(op)], op)

    async def respond(self, key: int, request: Any) -> Any:
        """The response of a handler, here on the controller."""
        node = SimpleNamespace(
            authorizer=self.authorizer,
            image=self.replica.image,
            entropy=RandomEntropy(),
            controller=self._controller,
        )
        handler = HANDLERS[key]
        try:
            return await handler.handle(SimpleNamespace(node=node, listener=PEER), request)
        except MqError as error:
            response = handler.failed(request, error)
            return all_slices(response) if isinstance(response, Generator) else response
