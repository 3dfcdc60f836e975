"""Data pipelines on Spark, and the commands to run them: `mqd-spark NAME`."""
