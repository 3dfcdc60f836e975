"""Every limit of the system, in one place. Assertions at import check their relations.

A full queue, frame or connection table is a normal state that has a response; these are the sizes
at which it is reached. Where an operator may change a limit, it is the default of a key in
`config.py`.
"""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB

# -- frames (protocol/frame.py, server/request_receiver.py)
REQUEST_BYTES_MAX = 100 * MIB
"""Default of `socket.request.max.bytes`: the largest frame that a client may send."""
REQUEST_BYTES_LEAST = 4 * KIB
"""Minimum of `socket.request.max.bytes`: with less, tools could not send their requests."""
FRAME_BYTES_MIN = 8
"""The smallest request: an API key, a version and a correlation id."""
ARRAY_ELEMENTS_MAX = 1_000_000
"""Larger arrays are rejected before allocation, as in Apache Kafka."""
REQUEST_ELEMENTS_MAX = 100_000
"""Elements in all arrays of one request. It limits the memory and time that a frame costs beyond
its own bytes.
"""
REQUEST_STRING_BYTES_MAX = 8 * MIB
"""Bytes of all strings in one request of a client, except Produce and Fetch. They are hashed,
compared and quoted several times. The names of 25,000 topics have at most 6 MiB.
"""
STRUCTURE_ELEMENTS = 4
"""Elements that one structure in an array counts as: two bytes of a frame can become 200 bytes of
memory.
"""
RESPONSE_ELEMENTS_MAX = 10 * ARRAY_ELEMENTS_MAX
"""Elements in all arrays of one response, for clients. The metadata of a large cluster has many
lists of replicas.
"""
RESPONSE_BYTES_MIN = 4
"""The smallest response: a correlation id."""
DECODED_AT_ONCE_BYTES_MAX = 4 * KIB
"""Larger requests, except Produce and Fetch, are decoded in slices: 2,000 structures of two bytes
take 6 ms.
"""
READ_AT_ONCE = 4
"""Concurrent read requests of a kind per listener. A response with 10,000 partitions takes 5 MB."""
ADMIN_REQUESTS_AT_ONCE = 4
"""Requests of one node's clients that the controller decides at once; others wait in a fair queue.
"""
LARGE_REQUESTS_AT_ONCE = 8
"""Concurrent other requests per listener that are larger than `DECODED_AT_ONCE_BYTES_MAX`."""
DECODED_AT_ONCE_ROWS = 500
"""Partitions of a Produce or Fetch that are handled at once: 500 take 3 to 5 ms. Larger requests
are decoded, executed and encoded in slices.
"""
PRODUCED_AT_ONCE_BYTES_MAX = 4 * MIB
"""A larger Produce to several partitions is appended in slices: 4 MiB take 2 ms."""
TAGGED_FIELDS_MAX = 1_000
"""Tagged fields of one structure. To skip so many takes 0.6 ms."""
STRING_BYTES_MAX = 32_767

# -- connections (io/net.py, server/)
CONNECTIONS_MAX = 1_000
"""Default of `max.connections`. Kafka's default has no limit."""
CONNECTIONS_LEAST = 10
"""Minimum of `max.connections`: with less, clients and tools could not work."""
CONNECTIONS_IDLE_LEAST_MS = 1_000
"""Minimum of `connections.max.idle.ms`: a client needs time between two requests."""
CONNECTIONS_IDLE_MAX_MS = 600_000
FRAME_RECEIVE_TIMEOUT_MS = 30_000
"""Time in which a frame must arrive completely after its first byte."""
IN_FLIGHT_REQUESTS_MAX = 256
"""Requests of one connection that wait for a response. At this limit, the node stops reading its
socket.
"""
SEND_QUEUE_BYTES_MAX = 8 * MIB
"""Response bytes of one connection that wait for a slow client. At this limit, the node stops
reading its socket.
"""
SEND_QUEUE_BYTES_MIN = 64 * KIB
"""The same limit when all slow clients of a node together hold too much memory (server/memory.py).
"""
SEND_STALL_MAX_MS = 30_000
"""Default of `connections.max.write.stall.ms`: a peer that reads no byte for this long while
responses wait is disconnected.
"""
CONNECTIONS_PER_ADDRESS_MAX = 1_000
"""Default of `max.connections.per.ip`; loopback addresses are exempt."""
PEER_RESPONSES_BYTES_MAX = 512 * MIB
"""Bytes of unsent responses to other nodes, in memory."""
PEER_REQUESTS_BYTES_MAX = 256 * MIB
"""Bytes of incomplete requests from other nodes. At this limit, new large frames wait."""
RECEIVE_ARENA_BYTES = 4 * MIB
RECEIVE_BYTES_MAX = 256 * KIB
"""Bytes received from one connection in one turn of the loop, so that one connection cannot delay
the others.
"""
SENDFILE_BYTES_MIN = 64 * KIB
"""Smaller ranges are read and sent with the header, which costs no more than sendfile
(bench/sendfile_border.py).
"""

SLICE_SECONDS_MAX = 0.002
"""A connection whose requests have taken longer in this turn yields to other connections."""
TURN_SECONDS_MAX = 0.01
"""After this time in a turn, no further connection gets a slice. The turn ends, and other tasks of
the node run.
"""
NEWCOMER_SECONDS = 0.0025
"""The part of a turn for connections whose handshake or login is not complete."""
TASK_SLICE_SECONDS_MAX = 0.005
"""After this time, a task that handles a large request lets others go first."""
SENT_BYTES_PER_SLICE = 4 * MIB
"""Bytes sent on one connection in one slice: about a millisecond of copying."""
TLS_RECORD_BYTES = 16 * KIB
"""The most bytes that one TLS record holds (RFC 8446)."""
TLS_RECEIVE_BYTES = 64 * KIB
"""Encrypted bytes that one call receives."""
TLS_SEND_BYTES = 64 * KIB
"""Bytes of a response that are encrypted at once. So many wait, encrypted, for a slow reader."""
TLS_SENT_AT_ONCE_BYTES = 1 * MIB
"""Bytes that one call encrypts and sends: half a millisecond. A reader may be as fast."""
TLS_CONNECTION_BYTES = 32 * KIB
"""Estimated memory of an incomplete TLS handshake."""
PEER_CONNECTIONS_MAX = 192
"""Open connections of nodes that have completed the handshake."""
UNAUTHENTICATED_CLUSTER_MAX = 64
"""Open connections of the peer listener without a completed handshake, from addresses of the
cluster. A further one replaces the oldest.
"""
UNAUTHENTICATED_OTHER_MAX = 32
UNAUTHENTICATED_PER_ADDRESS_MAX = 8
"""The same from all other addresses, and from one of them."""
HANDSHAKE_SECONDS_MIN = 0.1
"""How long even the oldest of these may take for its handshake: a new one waits so long."""
UNAUTHENTICATED_FRAME_BYTES_MAX = 1 * KIB
UNAUTHENTICATED_REQUESTS_MAX = 8
HANDSHAKE_SECONDS_MAX = 10.0
"""On the peer listener, until the handshake is complete: bytes of a frame, requests, and time."""
SASL_REQUESTS_MAX = 16
"""Requests of a client before the end of its authentication. SCRAM needs five."""
USERS_FILE_BYTES_MAX = 16 * 2**20
"""The size of the file with users of PLAIN: about 100,000 users."""
KEY_SET_BYTES_MAX = 1 * MIB
KEY_SET_TIMEOUT_SECONDS = 10.0
"""Bounds of a document with the keys that verify tokens."""
REQUEST_PARTITIONS_MAX = 50_000
"""Partitions in one Produce or Fetch request."""

# -- record batches (protocol/batch.py, log/)
BATCH_BYTES_MAX = 1 * MIB + 12
"""Default of `message.max.bytes`: Kafka's 1048588, one mebibyte and the log overhead."""
DECOMPRESSED_BYTES_MAX = 256 * MIB
"""Maximum size of a decompressed batch. Decompression stops and the batch is rejected at this size.
"""
HEADERS_READ_MAX = 10_000
"""Headers of a record that the broker reads itself, for a lookup or a share group: 10 ms."""
RECORDS_COMPRESSED_MAX = 1_000_000
"""Maximum number of records in one compressed batch, whose size does not limit their number.
librdkafka's `batch.num.messages` has the same maximum.
"""
INSPECTED_BYTES_MAX = 16 * MIB
"""Decompressed size of one batch whose records the broker inspects: for keys of compacted topics,
and for lookups by time.
"""
INSPECTED_MESSAGES = 16
"""The same limit as a multiple of `max.message.bytes`. The larger limit applies."""
INSPECTED_BYTES_LARGEST = 2 * INSPECTED_BYTES_MAX
"""The same limit, whatever `max.message.bytes` is: clients can set that option of a topic."""
LOOKUP_BYTES_MIN = 1 * MIB
LOOKUP_EXPANSION_MAX = 32
"""A lookup by time reads a compressed batch up to these bytes, or this multiple of its size; the
larger limit applies, up to `INSPECTED_BYTES_MAX`. So lookups cost no more than what clients stored.
"""
INSPECTED_AT_ONCE_BYTES = 256 * KIB
"""Decompressed bytes that the event loop reads in one step: about a millisecond. A worker thread
decompresses larger batches.
"""
RECOMPRESSED_BYTES_MAX = 64 * MIB
"""Batches that were compressed again and wait for their append, of all clients."""
RECOMPRESSED_BATCH_BYTES_MAX = 8 * MIB
"""One batch that was compressed again, unless it was larger before: its write is one step of the
event loop, 25 ms for this size.
"""
COMPRESSED_BLOCKS_MAX = 65_536
"""Blocks in one compressed batch: 30 ms to read their headers. Encoders write blocks of 32 KiB and
more.
"""
GZIP_MEMBERS_MAX = 1_024
"""Members in one gzip stream, each with a decoder of its own. Encoders write one."""
INSPECTED_BYTES_PER_RECORD = 256
"""The minimum weight of an inspected record. 65,536 records take about 50 ms."""
INSPECTED_BYTES_PER_TURN = INSPECTED_BYTES_MAX
"""Inspected bytes in one turn of the loop. Above this, further batches that need an inspection get
a retriable error.
"""
RECORD_ERRORS_MAX = 10
"""Record errors in one response."""
PRODUCER_BATCHES_CACHED = 5
"""Batches per producer id that are recognized as duplicates: Kafka's limit on `max.in.flight` with
idempotence.
"""
REFUSED_PARTITIONS_MAX = 100
"""Partitions of one connection whose last refusal is remembered (server/refused_batches.py)."""
PRODUCERS_PER_PARTITION_MAX = 100_000
"""Producers of one partition, and its open transactions. Producers in a transaction are never
forgotten.
"""
PRODUCER_BYTES = 1_280
"""Memory of a partition for a producer id with five batches, by `tracemalloc`; with one batch 450
bytes.
"""
PRODUCERS_PER_SLICE = 5_000
"""Producers visited in one slice: 4 ms."""
PRODUCER_SNAPSHOTS_PENDING_MAX = 2
"""Snapshots of one partition that wait for a sync. An older snapshot only shortens a recovery."""
PRODUCERS_REPEATING_MAX = 5_000
"""Producers of a partition whose batches a snapshot stores completely, the most recent ones. Of
other producers, it stores the last batch. A worker thread encodes the snapshot; the event loop
copies a table of the producers: 6 ms for 100,000.
"""

# -- fetch (replica/)
FETCH_BYTES_MAX = 55 * MIB
"""Default of `fetch.max.bytes`: maximum record bytes in one fetch response."""
FETCH_WAIT_MAX_MS = 3_600_000
ABORTED_AT_ONCE = 2_000
"""Aborted transactions that one slice lists for a fetch with `read_committed`: up to 2 ms."""
ABORTED_PER_FETCH_MAX = 100_000
"""When a fetch has so many in its list, it reads no further partition."""
FETCH_SESSIONS_MAX = 1_000
FETCH_SESSION_PARTITIONS_MAX = 10_000
"""Partitions in one fetch session. A larger fetch gets a response without a session."""
FETCH_SESSION_UNKNOWN_MAX = 100
"""Unknown partitions in one fetch session. Above this, the response closes the session, because
each further response would list them all.
"""
FETCH_SESSION_PARTITION_BYTES = 768
"""Memory of one partition in a fetch session, without the topic's name, by `tracemalloc`."""
FETCH_SESSIONS_BYTES_MAX = 100 * MIB
"""Memory of the partitions in all fetch sessions: about 130,000 partitions."""

# -- share sessions (share/sessions.py)
SHARE_MEMBER_ID_CHARS_MAX = 36
"""A member of a share group has a UUID as text."""
SHARE_SESSIONS_PER_CONNECTION_MAX = 100
"""A client has one for each of its members."""
SHARE_SESSION_PARTITIONS_MAX = 10_000
SHARE_SESSION_UNKNOWN_MAX = 100
"""Unknown partitions in one share session. Above this, the session ends, because each further
response would list them all.
"""
SHARE_SESSION_BYTES = 2 * KIB
"""Memory of a share session without its ids and partitions."""
SHARE_SESSION_PARTITION_BYTES = 2 * KIB
"""Memory of one partition in a share session, with the share partition that it loads."""
SHARE_SESSIONS_BYTES_MAX = 64 * MIB
"""Memory of all share sessions: about 30,000 partitions."""

# -- names and counts (controller/)
TOPIC_NAME_CHARS_MAX = 249
PARTITIONS_PER_REQUEST_MAX = 10_000
"""Larger CreateTopics and CreatePartitions requests get POLICY_VIOLATION, as in Apache Kafka."""
REFUSED_PARTITIONS_NAMED_MAX = 200
"""Partitions that repeat an error of their whole request in the response."""
METADATA_COMMAND_DECOMPRESSED_MAX = 1 * MIB
"""Maximum size of a decompressed metadata command. A larger one is not from mqd: the 10,000
partitions of a request take half of it.
"""
CONFIG_VALUE_BYTES_MAX = 16 * KIB
"""Maximum size of one override. It must fit into a string of a response."""
CONFIG_RESOURCE_BYTES_MAX = 64 * KIB
"""Maximum size of all overrides of one topic or node, names and values."""
CONFIG_RESOURCES_MAX = 2_000
"""Topics and nodes in one request that describes or alters configurations. The client retries with
the rest.
"""
CONFIG_KEY_CHARS_MAX = 500
"""Longer names of keys match none in a description of a resource. The names of loggers are the
longest ones.
"""
CONFIG_RESOURCE_REPEATS_MAX = 10
"""Times that one request may describe the same resource: a short request could otherwise get a long
response.
"""
CONFIG_CHANGES_MAX = 5_000
"""Values that one request changes, in all resources, or sets for new topics: 30 ms to decide."""
CONFIG_BYTES_PER_REQUEST_MAX = 1 * MIB
"""Names and values of configs that one request creates or alters, and those that its resources have
already: each is validated, 50 ns a byte.
"""
COORDINATOR_KEY_BYTES_MAX = 4 * KIB
"""Maximum size of a group id or transactional id. It is hashed like a Java string, one UTF-16 unit
at a time.
"""
ACLS_CREATED_MAX = 1_000
"""ACLs that one request creates: 10 ms to decide."""
ACL_NAME_BYTES_MAX = COORDINATOR_KEY_BYTES_MAX
"""Maximum size of a resource's name in an ACL: no longer one exists."""
ACL_BYTES_PER_REQUEST_MAX = 1 * MIB
"""Names, principals and hosts of the ACLs that one request creates: 10 ns a byte."""
ACL_FILTERS_MAX = 1_000
"""Filters in one request that deletes ACLs."""
ACLS_DELETED_MAX = 10_000
"""ACLs that one request deletes, as in Apache Kafka."""
SCRAM_USERS_MAX = 1_000
"""Users in one request that describes or alters SCRAM credentials: 15 ms to decide."""
QUOTA_ENTITIES_MAX = 1_000
QUOTA_CHANGES_MAX = 5_000
"""Entities and values in one request that alters client quotas: 15 ms to decide."""
METADATA_COMMAND_ROWS = 250
"""Topics, partitions and resources that one metadata command changes, if it has more than one
record: some 10 ms on each node.
"""
METADATA_COMMAND_PLAIN_BYTES = 32 * KIB
"""Bytes of such a command before compression."""
CREATED_TOPICS_MAX = 1_000
"""Topics that one request creates, or adds partitions to: 30 ms to validate."""
DELETED_TOPICS_MAX = 10_000
"""Topics that one request deletes."""
GROUP_BYTES_MAX = 32 * MIB
"""Metadata of all members of one classic group, for all protocols. Above this, further members are
rejected.
"""
CONSUMER_GROUP_BYTES_MAX = 128 * MIB
"""The same limit for a group of the consumer protocol: 1.8 million topic names.

Each target assignment reads each name, 0.1 us.
"""
JOIN_PROTOCOLS_MAX = 100
"""Protocols of one member of a classic group. Kafka's clients have five assignors."""
SUBSCRIBED_NAMES_MAX = 10_000
"""Topic names in the subscription of one member of a consumer group: a tenth of a second."""
SHARE_OFFSET_MAX = 2**63 - 2
"""The last offset of a share partition: the one behind it is an INT64, too."""
SHARE_STATE_RANGES_MAX = 10_500
"""Batches of one share partition at its share coordinator. Its leader has fewer
(share/memory.py). A snapshot takes 210 KB, and 20 ms.
"""
SHARE_CHANGE_BATCHES_MAX = 1_000
"""Batches in one change of a share partition. Leaders send at most half of it."""
SHARE_RESPONSE_RANGES_MAX = 50_000
"""Batches in one response of ReadShareGroupState, 5 us each. A leader reads one share partition."""
SHARE_OFFSETS_ROWS_MAX = 50_000
"""Partitions in one response of DescribeShareGroupOffsets after which further groups get an error,
and clients request them again: 500 bytes each.
"""
SHARE_UNACCEPTED_COUNTS_MAX = 10_000
"""Share partitions whose unaccepted records a node counts: 500 bytes each, and the group's name."""
TRANSACTION_PARTITIONS_MAX = 20_000
"""Partitions of one transaction, 1 us each. Its coordinator writes and reads a record with all of
them for each request that adds some. A topic counts as five further partitions.

Kafka has no limit but that of the record, 250,000 partitions.
"""
GROUP_MIGRATION_ELEMENTS_MAX = 12_000
"""Topics and partitions in the subscriptions and assignments of all members of a group that
migrates between the two protocols (KIP-848): 2 us each. With names of 30 characters, it is about as
much as the records may take by `message.max.bytes`, a mebibyte.
"""
GROUP_RECORD_BYTES_MAX = 8 * MIB
"""The metadata of a member or of a classic group in one record, and of all members of a group that
changes its protocol. One step encodes, writes and decodes them, in 3 ms a mebibyte. The limit is
`message.max.bytes` if that is less.
"""
SUBSCRIPTIONS_STEPS_MAX = 50_000
"""Steps in which a coordinator reads what a classic group subscribes to: 0.15 us each, mostly one
for each topic name of a member. Members with the same topics take a few steps.
"""
GROUP_MEMBER_BYTES = 1 * KIB
"""Fixed cost of a member, of each of its protocols, and of each member id that has not joined yet.
"""
GUARDS_KEPT_MAX = 10_000
"""Rejected first batches of transactions that producers may retry, in all partitions of a node;
about 250 bytes each.
"""
COORDINATED_GROUPS_AT_ONCE = 100
"""Groups of one request that a coordinator describes or deletes in one slice."""
METADATA_IMAGE_BYTES_MAX = 256 * MIB
"""Default of `metadata.image.max.bytes`: about 400,000 partitions with three replicas each
(controller/size.py).
"""
METADATA_IMAGE_BYTES_LARGEST = 1024 * MIB
"""Maximum of the option: its snapshot fits RAFT_SNAPSHOT_BYTES_MAX even if it cannot be compressed.
"""
CONFIGURED_GROUPS_MAX = 10_000
"""Consumer groups with overrides.

The groups need not exist, so nothing else limits their number.
"""
CLIENT_METRICS_SUBSCRIPTIONS_MAX = 1_000
"""Subscriptions of client metrics (KIP-714)."""
CLIENT_METRICS_NAME_BYTES_MAX = 4 * KIB
"""Maximum size of the name of a subscription."""
CLIENT_METRICS_MATCH_BYTES_MAX = 32 * KIB
"""Values of `match` that one request sets: their expressions are validated, 0.5 us a byte."""
BROKER_TEXT_BYTES_MAX = 1 * KIB
"""Maximum size of a broker's host name, and of its rack."""
PRODUCER_IDS_PER_BLOCK = 1_000
"""Producer ids in one block from the controller. The unused ids of a block are lost when the node
stops.
"""
TRANSACTIONAL_PRODUCER_IDS_FROM = 2**48
"""The producer ids of transactional ids begin here. All others are smaller. The leaders refuse a
batch with such an id that is in no transaction (mqd/log/appending.py)."""
TOPICS_CREATED_SOON_MAX = 1_000
"""Topics that wait for automatic creation after a metadata request. Above this, the client must
retry.
"""

# -- groups (coordinator/group/)
COMMITTED_PARTITIONS_MAX = 10_000
"""Partitions in one OffsetCommit request: a third of a second.

Kafka limits the size of the resulting batch by `message.max.bytes`.
"""
GROUP_OFFSETS_BYTES_MAX = 16 * MIB
"""Memory of the committed offsets of one group and their metadata: 52,428 offsets without metadata.

Kafka has no limit.
"""
FETCHED_OFFSETS_MAX = 100_000
"""Offsets in one OffsetFetch response. The client retries for the remaining groups."""

# -- raft
RAFT_COMMAND_BYTES_MAX = 60 * KIB
"""A command must fit into one append_entries batch (64 KiB minus headers): PySyncObj's chunked path
is not used.
"""
RAFT_ROWS_PER_TURN = 250
"""A node that has applied commands with so many changes in one turn (some 10 ms) applies the next
one in another turn.
"""
RAFT_BATCH_BYTES = 64 * KIB
RAFT_MESSAGE_BYTES_MAX = 8 * MIB
RAFT_OUTBOX_MESSAGES_MAX = 10_000
RAFT_OUTBOX_BYTES_MAX = 64 * MIB
"""Messages and bytes that wait for one peer. Above this, the connection is closed and replaced."""
RAFT_INBOX_MESSAGES_MAX = 10_000
"""Messages of peers that wait for the next turn. Above this, they are dropped, as a network may do.
"""
RAFT_PROPOSALS_MAX = 10_000
RAFT_APPENDS_PER_ROUND = 16
"""append_entries batches in flight to one follower."""
RAFT_SNAPSHOT_CHUNK_BYTES = 256 * KIB
RAFT_SNAPSHOT_BYTES_MAX = 1024 * MIB
RAFT_SNAPSHOT_PIECES_PER_SLICE = 4
"""Pieces of a snapshot that a worker thread makes in one slice. For the metadata, 256 KiB of text
take 5 ms.
"""
RAFT_SNAPSHOT_REST_SECONDS_MAX = 0.01
"""After a slice the thread pauses for as long as the slice took, and at most this long."""
RAFT_RESERVE_BYTES = 1 * MIB
"""Space that a node reserves on the metadata's disk, for use when the disk is full."""
RAFT_RESERVE_STEP_BYTES = 16 * KIB
"""Space released in one step: enough for the term and a few commands, and little that other writers
can take.
"""
RAFT_JOURNAL_ENTRIES_MAX = 10_000
RAFT_JOURNAL_BYTES_MAX = 16 * MIB
"""A snapshot is due after this many applied entries, or bytes of entries, since the last one."""
RAFT_JOURNAL_ENTRIES_KEPT = 1_000
"""Entries kept before a snapshot, so that a slow follower needs no snapshot."""

# -- clients (client/)
RESPONSE_BYTES_MAX = 128 * MIB
"""The largest response that mqd's client reads. A fetch response has at most FETCH_BYTES_MAX and
one batch.
"""
CLIENT_IN_FLIGHT_REQUESTS_MAX = 64
"""In-flight requests of one client connection."""
CLIENT_RECEIVE_BYTES = 256 * KIB
PRODUCER_BATCH_BYTES = 256 * KIB
"""Estimated size at which a producer closes a batch, before compression; less than the default of
`message.max.bytes`.
"""
PRODUCER_REQUEST_BYTES = 4 * MIB
PRODUCER_BUFFER_BYTES_MAX = 32 * MIB
"""Unacknowledged records of one producer. At this limit, `send` waits."""
CONSUMER_FETCH_BYTES = 8 * MIB
CONSUMER_PARTITION_FETCH_BYTES = 1 * MIB

assert FRAME_BYTES_MIN < BATCH_BYTES_MAX < REQUEST_BYTES_MAX <= PEER_REQUESTS_BYTES_MAX
assert 0 < SLICE_SECONDS_MAX < NEWCOMER_SECONDS < TURN_SECONDS_MAX
assert SENDFILE_BYTES_MIN < RECEIVE_BYTES_MAX <= RECEIVE_ARENA_BYTES
assert RAFT_COMMAND_BYTES_MAX + 64 < RAFT_BATCH_BYTES < RAFT_MESSAGE_BYTES_MAX
assert RAFT_SNAPSHOT_CHUNK_BYTES + 64 < RAFT_MESSAGE_BYTES_MAX < RAFT_OUTBOX_BYTES_MAX
assert METADATA_IMAGE_BYTES_MAX <= METADATA_IMAGE_BYTES_LARGEST <= RAFT_SNAPSHOT_BYTES_MAX
assert RAFT_JOURNAL_ENTRIES_KEPT < RAFT_JOURNAL_ENTRIES_MAX
assert RAFT_BATCH_BYTES + RAFT_COMMAND_BYTES_MAX + 64 < RAFT_MESSAGE_BYTES_MAX
assert (
    CONFIG_VALUE_BYTES_MAX < STRING_BYTES_MAX
    and CONFIG_VALUE_BYTES_MAX <= CONFIG_RESOURCE_BYTES_MAX
)
assert METADATA_COMMAND_PLAIN_BYTES < RAFT_COMMAND_BYTES_MAX
assert CONFIG_RESOURCE_BYTES_MAX <= CONFIG_BYTES_PER_REQUEST_MAX
assert CONFIG_RESOURCE_BYTES_MAX + 64 * KIB < METADATA_COMMAND_DECOMPRESSED_MAX
assert BATCH_BYTES_MAX < FETCH_BYTES_MAX <= REQUEST_BYTES_MAX
assert INSPECTED_AT_ONCE_BYTES < INSPECTED_BYTES_MAX
assert min(RECOMPRESSED_BYTES_MAX, DECOMPRESSED_BYTES_MAX) >= INSPECTED_BYTES_LARGEST
assert FETCH_BYTES_MAX + BATCH_BYTES_MAX < RESPONSE_BYTES_MAX
assert (
    PRODUCER_BATCH_BYTES < BATCH_BYTES_MAX
    and PRODUCER_BATCH_BYTES <= PRODUCER_REQUEST_BYTES < PRODUCER_BUFFER_BYTES_MAX
)
assert CLIENT_IN_FLIGHT_REQUESTS_MAX <= IN_FLIGHT_REQUESTS_MAX

# -- coordinators (coordinator/)
COORDINATOR_LOAD_BYTES = 64 * KIB
"""Bytes read in one slice while a coordinator loads a partition that it now leads: 800 offsets, 12
ms.
"""
TRANSACTIONS_PER_SEARCH = 500
"""Expired transactions and transactional ids handled in one step. The next step follows shortly."""
MARKERS_PER_REQUEST = 1000
"""Markers in one WriteTxnMarkers request."""
EXPRESSION_CHARS_MAX = 1_000
"""Characters of a regular expression. RE2 reads them in at most 3 ms."""
EXPRESSION_CLASSES_MAX = 20
"""Unicode classes (`\\p{L}`) in a regular expression. RE2 takes up to 0.2 ms for each."""
EXPRESSION_MEMORY = 128 * KIB
"""Maximum size of a compiled expression. It limits the time to match one name."""
EXPRESSION_STEPS = 1_000_000
"""Matching steps of a coordinator in one slice: characters times instructions, 2 to 13 ns each."""
ASSIGNOR_BALANCE_STEPS_MAX = 200_000
"""Steps (members and topics that are examined, about 0.1 us each) that one assignment may take
to make different shares more equal. The next assignment continues.
"""
ASSIGNMENT_STEPS_PER_SLICE = 60_000
"""Steps of the computation of a target assignment in one slice, about 0.1 us each."""
ASSIGNMENT_STEPS_PER_PORTION = 60_000
"""The same for the records of a target assignment: to encode, append and replay one batch."""

# -- access control (security/)
AUTHORIZER_DECISIONS_MAX = 50_000
"""Cached decisions of the authorizer, for all principals: about 20 MB. Then it forgets them."""
AUTHORIZER_NAME_CHARS_CACHED_MAX = 255
"""Decisions about longer names are not cached."""
AUDIT_LINES_PER_SECOND = 10
"""Lines of the audit log for one principal in one second. Others are counted."""
AUDIT_NAME_CHARS_MAX = 256
"""Characters of a resource's name in the audit log."""
AUDIT_PRINCIPALS_MAX = 1_000
"""Principals whose lines are counted. Beyond that, all others share one count."""

# -- the log (log/)
SCAN_BYTES = 1 * MIB
"""Bytes of a segment in one read of a recovery or lookup."""
RECOVERY_BATCH_BYTES_MAX = REQUEST_BYTES_MAX
"""The largest batch on disk. A greater length is corruption, and nothing is allocated for it."""
KEY_FILTER_BYTES_MAX = 64 * MIB
"""The key filter of one segment. A larger one would be for 32 million keys: it has more false
positives instead.
"""
KEY_FILTER_SECTIONS_MAX = 65_536
"""Sections of one segment in its key filter. A segment with more, of large batches, has larger
sections.
"""
FOUND_RECORDS_MAX = 1_000
"""Records in one response of a lookup by key."""
FOUND_BYTES_MAX = 1 * MIB
"""Their bytes. One record may be larger."""
FIND_SCANNED_BYTES_MAX = 64 * MIB
"""Bytes that one lookup by key reads and decompresses, about: 200 ms. The client goes on."""
FIND_SECONDS_MAX = 1.0
"""The time of one lookup by key."""
FIND_KEY_BYTES_MAX = BATCH_BYTES_MAX
"""The key of a lookup. Each chunk of the log is searched for its bytes."""
SEGMENTS_OPEN_MAX = 8
"""Older segments of one log with open files and indexes. The active segment is always open."""
SEGMENTS_UNSYNCED_MAX = 64
"""Full segments of one log that wait for their sync. At this limit, a batch that needs a new
segment gets a retriable error.
"""
SEGMENTS_RETIRED_AT_ONCE = 50
"""Segments that retention, a truncation or the replacement by a cleaned segment takes out of a log
in one step, with up to five renames each: 5 ms.
"""
OLDER_SEGMENTS_OPEN_MAX = 1_024
"""Open older segments of all logs, where descriptors are plentiful."""
DESCRIPTORS_SPARE = 16
"""Descriptors that the logs reserve, to repair a log after a write that got no descriptor."""
DESCRIPTORS_OTHERS = 256
"""Descriptors for everything except logs and client connections."""
ZSTD_LEVEL_MAX = 9
"""Higher levels of zstd compress as this one: 30 MB/s, and 16 MiB for the encoder. Level 22 needs
30 times as long and 180 MiB, and makes the result some percent smaller.
"""
POSITIONS_CACHED = 64
"""Batch positions per log that are cached for the next fetches of consumers."""
INDEX_ENTRIES_BUFFERED = 64
"""Index entries of one segment that are buffered for one write."""
FOLLOWER_BATCHES_MAX = 2048
"""Batches that a follower appends in one slice: 5 ms of work."""
FOLLOWER_STRETCH_BYTES = 4 * MIB
"""Bytes that a follower appends in one slice: 5 ms of CRCs and copying."""
SYNC_THREADS = 4
"""Concurrent fdatasync calls of one log directory."""
SYNCS_PLANNED_AT_ONCE = 50
"""Logs whose syncs are planned and begun in one step: 1 to 2 ms."""
CLEANED_RECORDS_PER_SLICE = 2048
"""Records that the compactor handles in one slice of a worker thread: 5 to 9 ms of work."""
CLEANER_REST_SECONDS_MAX = 0.01
"""After a slice the compactor pauses for as long as the slice took, and at most this long. On a
busy machine most of that time is waiting.
"""
CLEANER_BUFFER_BYTES_MIN = 1 * MIB
"""Minimum of `log.cleaner.dedupe.buffer.size`, as in Kafka."""
DISK_RESERVE_BYTES = 1 * MIB
"""After a full disk, appends are retried when more than this and the batch is free."""
assert RECOVERY_BATCH_BYTES_MAX >= BATCH_BYTES_MAX

# -- delay topics (relay/)
TIMERS_IN_MEMORY = 16_384
"""Entries of a timer index in memory, 70 bytes each; as many are then written to a file. To sort
them takes 5 ms.
"""
TIMER_TABLES_MAX = 4
"""Tables of so many entries that wait for their file. At this limit, the relay stops reading."""
TIMER_TABLE_OFFSETS_MAX = 64 * TIMERS_IN_MEMORY
"""Offsets after which a table is written even if few entries are left. A start reads at most so
many records again.
"""
TIMER_RUNS_MERGED = 8
"""Files of about the same size that are merged into one. There are few more than this for each
power of 8.
"""
TIMER_RUNS_MAX = 64
"""Files of one timer index, 64 KiB of memory each. At this limit, the relay stops reading, and the
smallest ones are merged, whatever their sizes are.
"""
TIMERS_BUFFERED = 2_048
"""Entries that are read from a file at once. Each file of an index has so many in memory: 48 KiB.
"""
TIMERS_PER_MERGE_STEP = 8_192
"""Entries of all files that a merge reads at once. A step in a worker thread merges half as many,
and at most half as many again: 5 to 8 ms.
"""
TIMER_BUCKETS = 4_096
"""Ranges of offsets whose entries a file counts, for the lowest pending offset."""
TIMER_PROGRESS_MARKS_MAX = 64
"""Marks of the progress of a delay partition, 24 bytes each. At this limit, records that arrive
wait until nothing else is due.
"""
RELAY_READS_AT_ONCE = 4
"""Relays of a node that take records into their index at the same time."""
RELAY_BEGINS_AT_ONCE = 8
"""Relays of a node that begin an epoch of their producer at one coordinator at the same time."""
RELAY_READ_BYTES = 512 * KIB
RELAY_READ_RECORDS = 8_192
"""Records that a relay reads at once, decompressed. A batch with more is large: a node reads one of
these at a time, and so many of its records at once.
"""
RELAY_BATCH_BYTES_MAX = INSPECTED_BYTES_MAX
"""The same for a large batch. The relay skips a larger one, with a log line."""
RELAY_HEADERS_MAX = 1_000
"""Headers of one record. The relay skips the batch of a record with more, with a log line."""
