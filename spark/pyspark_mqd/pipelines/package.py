"""`mqd-spark package`: what spark-submit needs, a zip archive of our modules and an entry file.

The archive holds `pyspark_mqd` and `mqd`. What they import must be in the Python of the workers:
it has compiled parts, and Python cannot load those from a zip archive.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import click

from pyspark_mqd.pipelines import report
from pyspark_mqd.pipelines.cli import output_option

ARCHIVE = "pyspark_mqd.zip"
ENTRY = "main_submit.py"
WORKERS_NEED = "construct cramjam crc32c google-re2 numpy pyarrow pysyncobj pyyaml trio"
_MOMENT = (1980, 1, 1, 0, 0, 0)


def sources() -> Iterator[tuple[str, Path]]:
    """The name in the archive and the place of each module."""
    import mqd
    import pyspark_mqd

    for package in (mqd, pyspark_mqd):
        (folder,) = package.__path__
        root = Path(folder)
        for path in sorted(root.rglob("*.py")):
            yield f"{root.name}/{path.relative_to(root).as_posix()}", path


def write_archive(target: Path) -> int:
    """Write the archive; the same sources give the same bytes. Returns the number of modules."""
    modules = list(sources())
    with ZipFile(target, "w") as archive:
        for name, path in modules:
            info = ZipInfo(name, _MOMENT)
            info.compress_type = ZIP_DEFLATED
            archive.writestr(info, path.read_bytes())
    return len(modules)


def write_package(folder: Path) -> dict[str, object]:
    """Write the archive and the entry; returns what the command prints."""
    from pyspark_mqd.pipelines import main_submit

    folder.mkdir(parents=True, exist_ok=True)
    modules = write_archive(folder / ARCHIVE)
    shutil.copyfile(main_submit.__file__, folder / ENTRY)
    return {
        "archive": str(folder / ARCHIVE),
        "entry": str(folder / ENTRY),
        "modules": modules,
        "workers_need": f"pip install {WORKERS_NEED}",
    }


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@output_option
def command(folder: Path, output: str) -> None:
    """Write what spark-submit needs to DIR: pyspark_mqd.zip and main_submit.py.

    The Python of the workers must have the packages that the command prints.

    \b
    Example: mqd-spark package build
             spark-submit --master spark://host:7077 --py-files build/pyspark_mqd.zip \\
               build/main_submit.py archive --topics orders --to /lake --checkpoint /state/orders
    """
    report.show_summary(output, write_package(folder))
