"""The entry for spark-submit: `spark-submit --py-files pyspark_mqd.zip main_submit.py archive ...`.

`mqd-spark package DIR` writes the zip archive and a copy of this file.
"""

from __future__ import annotations

from pyspark_mqd.pipelines.__main__ import main

if __name__ == "__main__":
    main()
