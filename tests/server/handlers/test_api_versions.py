"""ApiVersions through the whole server: what each listener offers, and the response to a client
that is too new.
"""

from __future__ import annotations

from pathlib import Path
from struct import pack
from typing import Any

import pytest

from mqd.controller.features import LEVELS
from mqd.errors import ErrorCode
from mqd.protocol import apis
from mqd.server.context import CLIENT, PEER
from mqd.server.served_apis import SERVED, SERVED_TO_CLIENTS, SERVED_TO_PEERS
from tests.server.rig import Client, rig, run_until_idle


async def versions(
    client: Client, version: int = 4, name: str = "test", software_version: str = "1.0"
) -> Any:
    return await client.request(
        "api_versions",
        version,
        {"client_software_name": name, "client_software_version": software_version},
    )


@pytest.mark.parametrize("version", range(5))
async def test_every_version(tmp_path: Path, version: int) -> None:
    async with rig(tmp_path) as node:
        response = await versions(await node.connect(), version)
        assert response.error_code == 0
        offered = {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}
        assert offered[0] == (0, 13)  # 0 to 2 are listed for librdkafka, and not served
        assert offered[1] == (4, 18)
        if version >= 3:
            assert response.finalized_features_epoch == node.image.index
        # a lowest level of 0 is included from v4 on
        shown = {3: {"mqd.metadata.version"}, 4: set(LEVELS)}
        assert {one.name for one in response.supported_features} == shown.get(version, set())
        finalized = {one.name: one.max_version_level for one in response.finalized_features}
        assert finalized == (node.image.features if version >= 3 else {})


INIT_PRODUCER_ID = 22
"""Its version 6 is unstable in Apache Kafka."""


async def test_offered_versions_are_served(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        for kind, names in (
            (CLIENT, ("produce", *SERVED, *SERVED_TO_CLIENTS)),
            (PEER, (*SERVED, *SERVED_TO_PEERS)),
        ):
            response = await versions(await node.connect(kind), name=apis.SOFTWARE)
            keys = [row.api_key for row in response.api_keys]
            served = [apis.by_name(name) for name in ("fetch", *names)]
            assert keys == sorted(api.key for api in served)
            for row in response.api_keys:
                api = apis.by_key(row.api_key)
                assert api is not None
                assert row.max_version == {INIT_PRODUCER_ID: 5}.get(api.key, api.versions[1])
                assert api.versions[0] >= row.min_version


@pytest.mark.parametrize("version", range(5))
async def test_other_clients_get_the_keys_of_apache_kafka_only(
    tmp_path: Path, version: int
) -> None:
    async with rig(tmp_path) as node:
        response = await versions(await node.connect(), version)
        assert max(row.api_key for row in response.api_keys) < apis.FIRST_OWN_KEY


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("", "1"),
        ("a", ""),
        ("-a", "1"),
        ("a-", "1"),
        ("a b", "1"),
        ("a", "1\n"),
        ("ä", "1"),
        ("a", "1_0"),
    ],
)
async def test_invalid_software_names(tmp_path: Path, name: str, version: str) -> None:
    async with rig(tmp_path) as node:
        client = await node.connect()
        assert (await versions(client, 3, name, version)).error_code == ErrorCode.INVALID_REQUEST
        assert (await versions(client, 2)).error_code == 0


@pytest.mark.parametrize("version", [5, 32_767, -1])
async def test_an_unknown_version_gets_a_response_in_version_0(
    tmp_path: Path, version: int
) -> None:
    async with rig(tmp_path) as node:
        client = await node.connect()
        client.send_frame(pack(">hhih", 18, version, 77, -1) + b"whatever that version has")
        await run_until_idle()
        (frame,) = client.frames()
        assert frame[:4] == pack(">i", 77)
        api = apis.by_name("api_versions")
        assert api is not None
        response = api.decode_response(0, frame, 4)
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert [(row.api_key, row.min_version, row.max_version) for row in response.api_keys] == [
            (18, 0, 4)
        ]
        assert (await versions(client)).error_code == 0
