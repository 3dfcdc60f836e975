"""Subscriptions of client metrics (KIP-714): a broker without a receiver of telemetry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.controller.client_metrics import CHANGES, NO_NAME, SET, VALUES, Answer

from .wire import Wire, until

KIND = 16
GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY = 71, 72


def alter(wire: Wire, name: str, *changes: tuple[str, int, str | None]) -> Answer:
    rows = [
        {"name": key, "config_operation": operation, "value": value}
        for key, operation, value in changes
    ]
    return only(wire, "IncrementalAlterConfigs", 1, name, rows)


def replace(wire: Wire, name: str, **configs: str) -> Answer:
    rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    return only(wire, "AlterConfigs", 2, name, rows)


def only(wire: Wire, api: str, version: int, name: str, rows: list[dict[str, Any]]) -> Answer:
    resource = {"resource_type": KIND, "resource_name": name, "configs": rows}
    (row,) = wire.ask(api, version, resources=[resource], validate_only=False).responses
    assert (row.resource_type, row.resource_name) == (KIND, name)
    return row.error_code, row.error_message


def described(wire: Wire, name: str) -> dict[str, tuple[str | None, int, int]]:
    resource = {"resource_type": KIND, "resource_name": name, "configuration_keys": None}
    (row,) = wire.ask("DescribeConfigs", 4, resources=[resource]).results
    assert row.error_code == 0, row
    return {one.name: (one.value, one.config_source, one.config_type) for one in row.configs}


def listed(wire: Wire) -> list[str]:
    response = wire.ask("ListConfigResources", 1, resource_types=[KIND])
    assert response.error_code == 0
    assert {row.resource_type for row in response.config_resources} <= {KIND}
    return [row.resource_name for row in response.config_resources]


def test_values(wire: Wire, new_name: Callable[[], str]) -> None:
    found = [alter(wire, new_name(), (key, SET, value)) for key, value, _ in VALUES]
    assert found == [answer for _, _, answer in VALUES]


def test_changes(wire: Wire, new_name: Callable[[], str]) -> None:
    found = [alter(wire, new_name(), *changes) for changes, _ in CHANGES]
    assert found == [answer for _, answer in CHANGES]
    assert alter(wire, "", ("interval.ms", SET, "500")) == NO_NAME


def test_a_subscription_exists_while_it_has_a_key(wire: Wire, new_name: Callable[[], str]) -> None:
    name = new_name()
    defaults = {"interval.ms": ("300000", 5, 3), "match": ("", 5, 7), "metrics": ("", 5, 7)}
    assert described(wire, name) == defaults
    assert alter(wire, name, ("metrics", SET, " a , b"), ("interval.ms", SET, "500")) == (0, None)
    until(lambda: name in listed(wire), "the subscription")
    names = wire.ask("ListConfigResources", 0).config_resources
    assert name in [row.resource_name for row in names]
    assert described(wire, name) == defaults | {
        "interval.ms": ("500", 7, 3),
        "metrics": ("a,b", 7, 7),
    }
    assert replace(wire, name, match="client_id=a") == (0, None)
    changed = defaults | {"match": ("client_id=a", 7, 7)}
    until(lambda: described(wire, name) == changed, "the replaced keys")
    assert replace(wire, name) == (0, None)
    until(lambda: name not in listed(wire), "the end of the subscription")


@pytest.mark.parametrize("key", [GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY])
def test_clients_are_not_asked_for_metrics(wire: Wire, key: int) -> None:
    response = wire.ask("ApiVersions", 3, client_software_name="wire", client_software_version="1")
    assert key not in [row.api_key for row in response.api_keys]
