"""mqctl, the command line for administrators. Commands are in mqctl/commands."""

from __future__ import annotations

import click

from mqctl.app import LazyGroup, guarded, shared_options
from mqd import __version__

COMMANDS = {
    "cluster": (
        "mqctl.commands.cluster:cluster",
        "Show the brokers, the quorum and the health of the cluster.",
    ),
    "broker": ("mqctl.commands.broker:broker", "List, describe, drain and unregister brokers."),
    "feature": (
        "mqctl.commands.feature:feature",
        "List features, and finalize their levels after an upgrade.",
    ),
    "partition": ("mqctl.commands.partition:partition", "List and move partitions, elect leaders."),
    "topic": ("mqctl.commands.topic:topic", "Create, list, describe, change and delete topics."),
    "produce": ("mqctl.commands.produce:produce", "Send records from standard input or a file."),
    "consume": ("mqctl.commands.consume:consume", "Read records from topics."),
    "find": ("mqctl.commands.find:find", "Find the records with a key."),
    "delay": ("mqctl.commands.delay:delay", "Show and cancel pending records of delay topics."),
    "retry": ("mqctl.commands.retry:retry", "Create retry topics."),
    "dlq": ("mqctl.commands.dlq:dlq", "Show, redrive and purge dead letters."),
    "group": (
        "mqctl.commands.group:group",
        "Show groups, members and lag; reset offsets; delete groups.",
    ),
    "user": ("mqctl.commands.user:user", "Create users, change passwords, list and delete users."),
    "acl": ("mqctl.commands.acl:acl", "Create, list, check and delete ACLs."),
    "quota": ("mqctl.commands.quota:quota", "Set, list and delete quotas of clients."),
    "profile": (
        "mqctl.commands.profile:profile",
        "Save, choose, list and delete the credentials of clusters.",
    ),
    "txn": ("mqctl.commands.txn:txn", "Show transactions; find and abort hanging ones."),
    "cert": (
        "mqctl.commands.cert:cert",
        "Create, renew and show the certificates of nodes and clients.",
    ),
    "log": ("mqctl.commands.log:log", "Read the data directory of a stopped node."),
}


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
)
@shared_options
@click.version_option(version=__version__, prog_name="mqctl")
@click.pass_context
def cli(context: click.Context, /, **given: object) -> None:
    """Inspect and administer an mqd or Apache Kafka cluster.

    \b
    Exit codes: 0 success, 1 failure, 2 usage error, 3 partial failure, 4 timeout.
    """
    context.obj = given


def main() -> None:
    """The entry point of the program `mqctl`."""
    guarded(lambda: cli.main(prog_name="mqctl", standalone_mode=False))


if __name__ == "__main__":
    main()
