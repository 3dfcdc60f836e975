"""Who a client is and what it may do: principals, credentials, ACLs, quotas. Pure cores.

TLS itself is in `mqd/io/tls*.py`. The server calls these cores for each connection and request.
"""
