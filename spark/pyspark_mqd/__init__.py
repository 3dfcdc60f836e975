"""The Spark data source `mqd`: `spark.read.format("mqd")`, and `readStream`, `write`, `writeStream`.

PySpark imports every package whose name begins with `pyspark_`, without a guard. So this file needs
nothing but pyspark, and never raises.
"""
