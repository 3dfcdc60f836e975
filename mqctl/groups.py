"""For the commands of `mqctl group`: lists and chooses groups, and formats assignments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from mqctl.app import Settings
from mqctl.outcomes import ListsByBroker, is_pattern
from mqd.types import TopicPartition

if TYPE_CHECKING:
    from mqd.client.admin import Admin
    from mqd.client.cluster import ClusterClient
    from mqd.client.group_descriptions import ListedGroup


def admin_of(client: ClusterClient, settings: Settings, *, patient: bool = True) -> Admin:
    from mqd.client.admin import Admin

    return Admin(client, timeout_s=settings.timeout_s, patient=patient)


async def list_groups(
    client: ClusterClient, settings: Settings, states: Sequence[str] = (), types: Sequence[str] = ()
) -> ListsByBroker[ListedGroup]:
    return ListsByBroker(
        await admin_of(client, settings, patient=False).list_groups_by_node(states, types)
    )


async def choose_groups(
    client: ClusterClient, settings: Settings, names: tuple[str, ...]
) -> tuple[dict[str, bool], ListsByBroker[ListedGroup]]:
    """The named groups and those that match a pattern, with the list that the patterns were applied
    to. True: the group is known to have members.
    """
    from mqd.client.group_descriptions import EMPTY_STATES

    patterns = [name for name in names if is_pattern(name)]
    chosen = {name: False for name in names if name not in patterns}
    if not patterns:
        return chosen, ListsByBroker({})
    listed = await list_groups(client, settings)
    matching = [
        each
        for each in listed.rows
        if any(fnmatchcase(each.group_id, pattern) for pattern in patterns)
    ]
    return {each.group_id: each.state not in EMPTY_STATES for each in matching} | chosen, listed


def by_topic(partitions: tuple[TopicPartition, ...]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for tp in partitions:
        topics.setdefault(tp.topic, []).append(tp.partition)
    return topics


def format_assignment(topics: Mapping[str, list[int]]) -> str:
    """`orders:0,1 payments:3`"""
    return " ".join(f"{topic}:{','.join(map(str, indexes))}" for topic, indexes in topics.items())
