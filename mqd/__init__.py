"""mqd: a distributed message queue that runs itself and speaks the Apache Kafka wire protocol."""

__version__ = "0.1.0"
