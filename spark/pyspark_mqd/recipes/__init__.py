"""Recipes: small whole programs that turn topics into tables, to run as they are or to start from.

    python -m pyspark_mqd.recipes.avro_registry --help
    python -m pyspark_mqd.recipes.json_values --help
    python -m pyspark_mqd.recipes.protobuf_values --help

Each reads topics, decodes values, and writes records to Parquet files. Values that cannot be
decoded go to a topic of dead letters, with headers that `mqd-spark dlq` understands. The recipes
that decode in Python need fastavro or protobuf, and pandas for Spark's `mapInArrow`. The extra
`mqd[recipes]` installs them.
"""
