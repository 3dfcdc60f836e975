"""End to end: stock clients and bare sockets against a real broker process, mqd's or (`--broker
host:port`) any other.
"""

import warnings

# kafka-python reads its schemas at import, by a function that Python 3.11 deprecates
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.protocol.admin
    import kafka.protocol.consumer
    import kafka.protocol.metadata
    import kafka.protocol.producer  # noqa: F401
