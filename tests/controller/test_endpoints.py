"""The listeners of brokers in the metadata, from metadata version 3 on."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from mqd.controller.brokers import Register, decide_register
from mqd.controller.delta import Delta
from mqd.controller.endpoints import BrokerEndpoint, stored_endpoints
from mqd.controller.image import MetadataImage
from mqd.controller.records import SetFeature
from mqd.controller.replay import replay
from mqd.controller.size import recount
from mqd.controller.snapshot import encode_snapshot, restore
from mqd.raft import versions
from mqd.types import NodeId
from tests.controller.cluster import CLUSTER, Replica

ONE = NodeId(1)
INSIDE = BrokerEndpoint("PLAINTEXT", 0, "h", 9092)
OUTSIDE = BrokerEndpoint("SSL", 1, "public.example", 9093)
OP = Register(ONE, CLUSTER, UUID(int=1), "h", 9092, None, endpoints=(INSIDE, OUTSIDE))


def test_the_default_listener_is_not_stored() -> None:
    assert stored_endpoints((INSIDE,)) == ()
    assert stored_endpoints((OUTSIDE,)) == (OUTSIDE,)
    assert stored_endpoints((INSIDE, OUTSIDE)) == (INSIDE, OUTSIDE)


def test_clients_get_the_address_of_their_listener() -> None:
    replica = Replica()
    replica.run(decide_register, OP)
    image = replica.image
    broker = image.brokers[ONE]
    assert broker.endpoints == (INSIDE, OUTSIDE)
    assert image.address_on("SSL", broker) == ("public.example", 9093)
    assert image.address_on("PLAINTEXT", broker) == ("h", 9092)
    assert image.address_on("OTHER", broker) is None
    assert image.address_on(None, broker) == ("h", 9092)
    plain = replace(broker, endpoints=())
    assert image.address_on("SSL", plain) is None
    assert image.address_on("PLAINTEXT", plain) == ("h", 9092)
    assert image.size == recount(image)
    copy = MetadataImage()
    restore(copy, encode_snapshot(image))
    assert copy.brokers == image.brokers
    replica.run(decide_register, replace(OP, incarnation=UUID(int=2), endpoints=()))
    assert replica.image.brokers[ONE].endpoints == ()
    assert replica.image.size == recount(replica.image)


def test_endpoints_wait_for_the_metadata_version() -> None:
    replica = Replica()
    replica.run(decide_register, replace(OP, endpoints=()))
    image = replica.image
    replay(image, SetFeature(versions.FEATURE, 2), image.index, Delta(image.index))
    replica.run(decide_register, replace(OP, incarnation=UUID(int=2)))
    broker = image.brokers[ONE]
    assert broker.endpoints == ()
    assert image.address_on("SSL", broker) == ("h", 9092)  # the only address that is known
    replay(image, SetFeature(versions.FEATURE, 3), image.index, Delta(image.index))
    replica.run(decide_register, replace(OP, incarnation=UUID(int=2)))
    assert image.brokers[ONE] == replace(broker, endpoints=(INSIDE, OUTSIDE))
