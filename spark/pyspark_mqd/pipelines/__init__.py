"""Data pipelines on Spark, and the commands for whoever runs them: `mqd-spark NAME`."""
