"""mqctl retry: create retry topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mqctl.app import Failure, LazyGroup, Settings, options, print_message, run
from mqctl.committed import described
from mqd.back_off import parse_back_off
from mqd.delay_names import BACKOFF_CONFIG, DEAD_LETTERS_CONFIG, TARGET_CONFIG

if TYPE_CHECKING:
    from mqd.client.cluster import ClusterClient

COMMANDS = {"setup": ("mqctl.commands.retry:setup", "Create the retry topic of a topic.")}


@click.group(cls=LazyGroup, lazy=COMMANDS, no_args_is_help=True)
def retry() -> None:
    """Create retry topics."""


@click.command()
@click.argument("topic")
@click.option(
    "--back-off",
    required=True,
    metavar="DELAYS",
    help="The delay before each attempt, such as 1s,10s,1m,10m. After the last one, a record is a "
    "dead letter.",
)
@click.option("--retry-topic", metavar="NAME", help="[default: TOPIC.retry]")
@click.option("--dlq", metavar="NAME", help="The dead-letter topic. [default: TOPIC.dlq]")
@options
def setup(
    settings: Settings, topic: str, back_off: str, retry_topic: str | None, dlq: str | None
) -> None:
    """Create the retry topic of a topic, and its dead-letter topic if that does not exist.

    Both have as many partitions as the topic. A consumer produces a record that it cannot process
    to the retry topic, unchanged. See docs/DELAY.md.

    \b
    mqctl retry setup orders --back-off 1s,10s,1m,10m
    """
    retries, dead = retry_topic or f"{topic}.retry", dlq or f"{topic}.dlq"
    _check(back_off, topic, retries, dead)

    async def work(client: ClusterClient) -> bool:
        from mqd.client.admin import Admin
        from mqd.client.descriptions import NewTopic
        from mqd.client.errors import ClientError
        from mqd.errors import ErrorCode

        found = await described(client, topic, settings.timeout_s)
        if found.internal:
            raise Failure(f"topic {topic!r} is internal", remedy="name a topic of yours")
        count, factor = len(found.partitions), found.replication_factor
        admin = Admin(client, timeout_s=settings.timeout_s)
        configs = {
            TARGET_CONFIG: topic,
            BACKOFF_CONFIG: back_off,
            "message.timestamp.type": "LogAppendTime",
        }
        # refused here, if at all: before the first topic is created
        planned = NewTopic(retries, count, factor, configs)
        valid = (await admin.create_topics([planned], validate_only=True))[retries]
        if isinstance(valid, ClientError) and valid.code is ErrorCode.TOPIC_ALREADY_EXISTS:
            raise Failure(
                f"topic {retries!r} already exists, and {BACKOFF_CONFIG} cannot be changed",
                remedy="name another topic with --retry-topic; or wait until `mqctl delay list "
                f"{retries}` shows no records, delete the topic, and repeat the command",
            )
        if isinstance(valid, ClientError):
            raise valid
        made = (await admin.create_topics([NewTopic(dead, count, factor)]))[dead]
        if isinstance(made, ClientError) and made.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise made
        await admin.create_topic(retries, count, factor, {**configs, DEAD_LETTERS_CONFIG: dead})
        return not isinstance(made, ClientError)

    is_new = run(settings, work)
    print_message(f"Created retry topic {retries!r}.")
    print_message(
        f"Created dead-letter topic {dead!r}." if is_new else f"Topic {dead!r} gets dead letters."
    )


def _check(back_off: str, topic: str, retries: str, dead: str) -> None:
    """Refuse what needs no cluster to be refused."""
    try:
        if not parse_back_off(back_off):
            raise ValueError("it has no delay: write for example 1s,10s,1m")
    except ValueError as error:
        raise click.UsageError(f"invalid --back-off {back_off!r}: {error}") from None
    if len({topic, retries, dead}) < 3:
        raise click.UsageError("the topic, --retry-topic and --dlq must be three different topics")
