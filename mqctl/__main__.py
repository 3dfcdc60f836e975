"""mqctl: look at a cluster and change it. The commands are in mqctl/commands, one file a noun or verb."""

from __future__ import annotations

import click

from mqctl.app import LazyGroup, guarded, shared_options
from mqd import __version__

COMMANDS = {
    "cluster": ("mqctl.commands.cluster:cluster", "Nodes and the state of the cluster."),
    "broker": ("mqctl.commands.broker:broker", "List, describe and empty nodes."),
    "feature": ("mqctl.commands.feature:feature", "List features and finalize their levels, after an upgrade."),
    "partition": ("mqctl.commands.partition:partition", "List, move and lead partitions."),
    "topic": ("mqctl.commands.topic:topic", "Create, list, describe, change and delete topics."),
    "produce": ("mqctl.commands.produce:produce", "Send records from standard input or a file."),
    "consume": ("mqctl.commands.consume:consume", "Read records of topics."),
    "group": ("mqctl.commands.group:group", "Groups: members, offsets, lag; set where they go on."),
    "txn": ("mqctl.commands.txn:txn", "Transactions: which are open, and those that nobody ends."),
    "log": ("mqctl.commands.log:log", "Read the data directory of a stopped node."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=True)
@shared_options
@click.version_option(version=__version__, prog_name="mqctl")
@click.pass_context
def cli(context: click.Context, /, **given: object) -> None:
    """Look at an mqd or Apache Kafka cluster, and change it.

    \b
    Exit codes: 0 ok, 1 failed, 2 wrong usage, 3 done in part, 4 no answer in time.
    """
    context.obj = given


def main() -> None:
    """The entry point."""
    guarded(lambda: cli.main(prog_name="mqctl", standalone_mode=False))


if __name__ == "__main__":
    main()
