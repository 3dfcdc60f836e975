"""mqd-spark: data pipelines on Spark. Each command is a module of this folder, imported lazily."""

from __future__ import annotations

import click

from mqd import __version__
from pyspark_mqd.pipelines.cli import HELP_NAMES, LazyGroup, guarded

_FOLDER = "pyspark_mqd.pipelines"

COMMANDS = {
    "archive": (f"{_FOLDER}.archive:command", "Write topics to Parquet or Delta, exactly once."),
    "replay": (f"{_FOLDER}.replay:command", "Write archived records back into a topic."),
    "snapshot": (f"{_FOLDER}.snapshot:command", "Write the latest value per key of a topic."),
    "upsert": (f"{_FOLDER}.upsert:command", "Merge change events into a Delta table."),
    "rollup": (f"{_FOLDER}.rollup:command", "Aggregate records over time windows."),
    "mirror": (f"{_FOLDER}.mirror:command", "Copy topics to another cluster, exactly once."),
    "dlq": (f"{_FOLDER}.dlq:command", "Show dead letters, redrive or park them."),
    "audit": (f"{_FOLDER}.audit:command", "Find lost, duplicated and reordered records."),
    "verify": (f"{_FOLDER}.verify:command", "Compare an archive's offset ranges with the topics."),
    "lag": (f"{_FOLDER}.lag:command", "Show the lag of a query."),
    "offsets": (f"{_FOLDER}.offsets:command", "Show and reset the offsets of a query."),
    "txn": (f"{_FOLDER}.txn:command", "List and end open transactions of queries."),
    "doctor": (f"{_FOLDER}.doctor:command", "Check Java, versions, settings and brokers."),
    "package": (f"{_FOLDER}.package:command", "Write the files that spark-submit needs."),
    "demo": (f"{_FOLDER}.demo:command", "Run a cluster, a producer, archive and rollup."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings=HELP_NAMES, no_args_is_help=True)
@click.version_option(version=__version__, prog_name="mqd-spark")
def cli() -> None:
    """Run a data pipeline between topics, files and tables on Spark.

    \b
    Exit codes: 0 success, 1 an error, or a check found problems, 2 wrong usage.
    Example: mqd-spark archive --topics orders --to lake --checkpoint state/orders
    """


def main() -> None:
    """The entry point."""
    guarded(lambda: cli.main(prog_name="mqd-spark", standalone_mode=False))


if __name__ == "__main__":
    main()
