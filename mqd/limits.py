"""Every bound of the system, in one place, with their relations asserted at import.

A full queue, a full frame or a full connection table is a normal state with an answer; these are
the sizes at which it is reached. What an operator may change has a key in `config.py` with one of
these as its default.
"""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB

# -- frames (protocol/frame.py, server/connection.py)
REQUEST_BYTES_MAX = 100 * MIB
REQUEST_BYTES_LEAST = 4 * KIB
"""The least value of `socket.request.max.bytes`: with less, tools could not send their requests."""
"""Default of `socket.request.max.bytes`: the largest frame a client may send."""
FRAME_BYTES_MIN = 8
"""An API key, a version and a correlation id: nothing shorter is a request."""
ARRAY_ELEMENTS_MAX = 1_000_000
"""Arrays above this are refused before allocation, as Apache Kafka does."""
REQUEST_ELEMENTS_MAX = 100_000
"""Elements of all arrays of a request together: what bounds the memory and the time that a
frame can cost beyond its own bytes.
"""
STRUCTURE_ELEMENTS = 4
"""A structure in an array counts as so many elements: two bytes of a frame can become 200
of memory.
"""
RESPONSE_ELEMENTS_MAX = 10 * ARRAY_ELEMENTS_MAX
"""The same for what a client reads: the metadata of a large cluster has many lists of replicas."""
RESPONSE_BYTES_MIN = 4
"""A correlation id: nothing shorter is a response."""
DECODED_AT_ONCE_BYTES_MAX = 4 * KIB
"""Larger requests, other than Produce and Fetch, are decoded in slices: 2,000 structures of
two bytes take 6 ms.
"""
READ_AT_ONCE = 4
"""Requests that read the state of a broker, at once on a listener: the rows of a response
to 10,000 partitions take 5 MB.
"""
LARGE_REQUESTS_AT_ONCE = 8
"""Other requests above `DECODED_AT_ONCE_BYTES_MAX`, at once on a listener."""
DECODED_AT_ONCE_ROWS = 500
"""Partitions of a Produce or Fetch; a request with more is decoded, carried out and
answered in slices. 500 take 3 to 5 ms.
"""
PRODUCED_AT_ONCE_BYTES_MAX = 4 * MIB
"""A Produce of several partitions and more bytes is appended in slices: 4 MiB take 2 ms."""
TAGGED_FIELDS_MAX = 10_000
STRING_BYTES_MAX = 32_767

# -- connections (io/net.py, server/)
CONNECTIONS_MAX = 1_000
"""Default of `max.connections`: finite, where Kafka's is not."""
CONNECTIONS_LEAST = 10
"""The least value of `max.connections`: with less, no client and no tool could work."""
CONNECTIONS_IDLE_LEAST_MS = 1_000
"""The least value of `connections.max.idle.ms`: a client needs time between two requests."""
CONNECTIONS_IDLE_MAX_MS = 600_000
FRAME_RECEIVE_TIMEOUT_MS = 30_000
"""A frame that has begun must have arrived whole after this long."""
IN_FLIGHT_REQUESTS_MAX = 256
"""Requests of one connection that may wait for a response; then its socket is not read."""
SEND_QUEUE_BYTES_MAX = 8 * MIB
"""Responses of one connection that may wait in memory for a slow reader; then its socket is
not read.
"""
SEND_QUEUE_BYTES_MIN = 64 * KIB
"""The same where the readers of a node together are slow (server/memory.py)."""
SEND_STALL_MAX_MS = 30_000
"""Default of `connections.max.write.stall.ms`: a peer that takes no byte for this long
while responses wait is disconnected.
"""
CONNECTIONS_PER_ADDRESS_MAX = 1_000
"""Default of `max.connections.per.ip`; loopback addresses are exempt."""
PEER_RESPONSES_BYTES_MAX = 512 * MIB
"""Bytes of unsent responses to nodes of the cluster, in memory."""
PEER_REQUESTS_BYTES_MAX = 256 * MIB
"""Bytes of unfinished requests of nodes of the cluster; above it, new large frames wait."""
RECEIVE_ARENA_BYTES = 4 * MIB
RECEIVE_BYTES_MAX = 256 * KIB
"""What one connection may bring into one turn of the loop: fairness among many."""
SENDFILE_BYTES_MIN = 64 * KIB
"""Below this, reading and sending with the header is as cheap as sendfile
(bench/sendfile_border.py).
"""

SLICE_SECONDS_MAX = 0.002
"""A connection whose requests have taken longer than this in one turn lets others go first."""
TURN_SECONDS_MAX = 0.01
"""After this long no other connection gets a slice in a turn: the turn ends, and the rest
of the node runs.
"""
SENT_BYTES_PER_SLICE = 4 * MIB
"""What one connection sends in one go: about a millisecond of copying to its socket."""
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
REQUEST_PARTITIONS_MAX = 50_000
"""Partitions in one Produce or Fetch."""

# -- record batches (protocol/batch.py, log/)
BATCH_BYTES_MAX = 1 * MIB + 12
"""Default of `message.max.bytes` (Kafka's 1048588: a mebibyte and the log overhead)."""
DECOMPRESSED_BYTES_MAX = 256 * MIB
"""A compressed batch that grows beyond this is refused while it is being read."""
RECORDS_COMPRESSED_MAX = 1_000_000
"""Records of one compressed batch, whose count the bytes do not prove: the most that
librdkafka's `batch.num.messages` allows.
"""
INSPECTED_BYTES_MAX = 16 * MIB
"""The decompressed size of one batch whose records the broker inspects: keys of compacted topics,
lookups by time.
"""
INSPECTED_MESSAGES = 16
"""The same as a multiple of `max.message.bytes`. The larger limit counts."""
INSPECTED_BYTES_PER_RECORD = 256
"""The minimum weight of an inspected record. 65,536 records take about 50 ms."""
INSPECTED_BYTES_PER_TURN = INSPECTED_BYTES_MAX
"""Above this sum in one turn of the loop, batches that need an inspection get a retriable error."""
RECORD_ERRORS_MAX = 10
"""Records that one refusal names."""
PRODUCER_BATCHES_CACHED = 5
"""Batches per producer id whose repeats are recognised: Kafka's limit on `max.in.flight`
with idempotence.
"""
PRODUCERS_PER_PARTITION_MAX = 100_000
PRODUCER_BYTES = 1_280
"""What a partition remembers of a producer id with five batches, by `tracemalloc`; 450 with one."""
PRODUCERS_MEMORY_SHARE = 16
PRODUCERS_MEMORY_BYTES_MIN = 64 * MIB
"""Default of `producer.state.memory.bytes`: a sixteenth of the memory, and no less than this."""
PRODUCERS_PER_SLICE = 5_000
"""Visited in one step of the event loop: 4 ms."""
PRODUCER_SNAPSHOTS_PENDING_MAX = 2
"""Snapshots of one partition that wait for a sync. An older one only shortens a recovery."""
PRODUCERS_REPEATING_MAX = 5_000
"""Of so many producers of a partition, those that were seen last, a snapshot holds all of these
batches, of the others the last one. A worker thread encodes it; the event loop copies a table of
the producers, 6 ms for 100,000.
"""

# -- fetch (replica/)
FETCH_BYTES_MAX = 55 * MIB
"""Default of `fetch.max.bytes`, the broker's own cap on one answer."""
FETCH_WAIT_MAX_MS = 3_600_000
FETCH_SESSIONS_MAX = 1_000
FETCH_SESSION_PARTITIONS_MAX = 10_000
"""Partitions that one session remembers; who fetches more does so without a session."""
FETCH_SESSION_UNKNOWN_MAX = 100
"""A session that wants more partitions which do not exist ends with the answer: each of its
fetches would name them all.
"""
FETCH_SESSIONS_PARTITIONS_MAX = 200_000
"""The same over all sessions: about 100 MiB."""

# -- names and counts (controller/)
TOPIC_NAME_CHARS_MAX = 249
PARTITIONS_PER_REQUEST_MAX = 10_000
"""CreateTopics and CreatePartitions above this answer POLICY_VIOLATION, as Apache Kafka does."""
REFUSED_PARTITIONS_NAMED_MAX = 200
"""An error of a whole request is repeated for each of its partitions, for at most so many."""
METADATA_COMMAND_DECOMPRESSED_MAX = 1 * MIB
"""A metadata command that inflates beyond this was not written by mqd: the 10,000
partitions of a request take half of it.
"""
CONFIG_VALUE_BYTES_MAX = 16 * KIB
"""One override, by itself: what is stored must fit an answer's string."""
CONFIG_RESOURCE_BYTES_MAX = 64 * KIB
"""All overrides of one topic or node, names and values."""
CONFIG_RESOURCES_MAX = 2_000
"""Topics and nodes whose configuration one request changes or asks for; beyond it, the
client asks again.
"""
CONFIG_RESOURCE_REPEATS_MAX = 10
"""Times that one request gets the same configuration; a short request could have a long
response.
"""
CONFIG_CHANGES_MAX = 10_000
"""Values that one request changes, of all resources."""
CREATED_TOPICS_MAX = 1_000
"""Topics that one request creates, or gives more partitions: 30 ms to decide."""
DELETED_TOPICS_MAX = 10_000
"""Topics that one request deletes."""
COORDINATOR_KEY_BYTES_MAX = 4 * KIB
"""Of a group's or a transaction's name: it is hashed as Java does, unit by unit."""
GROUP_BYTES_MAX = 32 * MIB
"""What the members of one classic group may say about themselves, all protocols together;
beyond it, nobody more can join.
"""
CONSUMER_GROUP_BYTES_MAX = 128 * MIB
"""The same of a group of the consumer protocol: 1.8 million names of topics.

Each is looked at for each target, 0.1 us.
"""
JOIN_PROTOCOLS_MAX = 100
"""Protocols that one member of a classic group names; Kafka's clients have five assignors."""
SUBSCRIBED_NAMES_MAX = 10_000
"""Topics that one member of a consumer group subscribes to by their names: a tenth of a second."""
GROUP_MEMBER_BYTES = 1 * KIB
"""What a member counts for besides, and each protocol that it names, and each id that was
given out to somebody who has not joined.
"""
GUARDS_KEPT_MAX = 10_000
"""First batches of transactions that the coordinator refused and that may come again, of
all partitions of a node; about 250 bytes each.
"""
COORDINATED_GROUPS_AT_ONCE = 100
"""Groups of one request that a coordinator describes or deletes without letting others go first."""
METADATA_IMAGE_BYTES_MAX = 256 * MIB
"""Default of `metadata.image.max.bytes`: some 400,000 partitions with three replicas each
(controller/size.py).
"""
METADATA_IMAGE_BYTES_LARGEST = 1024 * MIB
"""The most that the option allows: its snapshot fits RAFT_SNAPSHOT_BYTES_MAX even if it
does not deflate.
"""
CONFIGURED_GROUPS_MAX = 10_000
"""Consumer groups with overrides of their own.

They need not exist, so nothing else bounds their number.
"""
BROKER_TEXT_BYTES_MAX = 1 * KIB
"""Of a broker's host name and of its rack, each."""
PRODUCER_IDS_PER_BLOCK = 1_000
"""Producer ids that a node takes from the controller at a time; the rest of a block is lost
when the node stops.
"""
PRODUCER_ID_MAX = 2**63 - 1
TOPICS_CREATED_SOON_MAX = 1_000
"""Topics that wait to be created in the background because a client asked about them;
beyond it, the client asks again.
"""

# -- groups (coordinator/group/)
COMMITTED_PARTITIONS_MAX = 10_000
"""Partitions whose offsets one request commits: a third of a second.

Kafka's bound is the batch that they become, `message.max.bytes`.
"""
GROUP_OFFSETS_BYTES_MAX = 16 * MIB
"""Memory that the offsets of one group may take with their metadata: 52,428 offsets without any.

Kafka has no bound.
"""
FETCHED_OFFSETS_MAX = 100_000
"""Offsets in one answer to OffsetFetch; of the groups that are left, the client is to ask again."""

# -- raft
RAFT_COMMAND_BYTES_MAX = 60 * KIB
"""A command must fit one append_entries batch (64 KiB less headers): PySyncObj's chunked
path is not used.
"""
RAFT_BATCH_BYTES = 64 * KIB
RAFT_MESSAGE_BYTES_MAX = 8 * MIB
RAFT_OUTBOX_MESSAGES_MAX = 10_000
RAFT_OUTBOX_BYTES_MAX = 64 * MIB
"""Messages and bytes that may wait for one peer; beyond, the connection is cut and starts
afresh.
"""
RAFT_INBOX_MESSAGES_MAX = 10_000
"""Peers' messages that may wait for the next turn; beyond, they are dropped as a network would."""
RAFT_PROPOSALS_MAX = 10_000
RAFT_APPENDS_PER_ROUND = 16
"""append_entries batches sent to one follower before an answer is awaited."""
RAFT_SNAPSHOT_CHUNK_BYTES = 256 * KIB
RAFT_SNAPSHOT_BYTES_MAX = 1024 * MIB
RAFT_SNAPSHOT_PIECES_PER_SLICE = 4
"""Pieces that a worker thread makes of a snapshot before others get the processor: of the
metadata's, 256 KiB of text in 5 ms.
"""
RAFT_SNAPSHOT_REST_SECONDS_MAX = 0.01
"""After a slice the thread rests as long as that took, and no longer than this."""
RAFT_RESERVE_BYTES = 1 * MIB
"""Held back on the metadata's disk for when it is full."""
RAFT_RESERVE_STEP_BYTES = 16 * KIB
"""Given up at once: enough for the term and a few commands, and little for others to take."""
RAFT_JOURNAL_ENTRIES_MAX = 10_000
RAFT_JOURNAL_BYTES_MAX = 16 * MIB
"""Applied entries, or their bytes, since the last snapshot that make the next one due."""
RAFT_JOURNAL_ENTRIES_KEPT = 1_000
"""Entries that stay behind a snapshot, so that a follower slightly behind needs no snapshot."""

# -- clients (client/)
RESPONSE_BYTES_MAX = 128 * MIB
"""The largest answer that a client of ours reads: a fetch answer is at most FETCH_BYTES_MAX
and one batch.
"""
CLIENT_IN_FLIGHT_REQUESTS_MAX = 64
"""Requests that one client connection sends ahead of their answers."""
CLIENT_RECEIVE_BYTES = 256 * KIB
PRODUCER_BATCH_BYTES = 256 * KIB
"""Records gather into a batch up to this estimate before compression; safely below the
default `message.max.bytes`.
"""
PRODUCER_REQUEST_BYTES = 4 * MIB
PRODUCER_BUFFER_BYTES_MAX = 32 * MIB
"""Records of one producer that wait for their acknowledgement; then `send` waits."""
CONSUMER_FETCH_BYTES = 8 * MIB
CONSUMER_PARTITION_FETCH_BYTES = 1 * MIB

assert FRAME_BYTES_MIN < BATCH_BYTES_MAX < REQUEST_BYTES_MAX <= PEER_REQUESTS_BYTES_MAX
assert 0 < SLICE_SECONDS_MAX < TURN_SECONDS_MAX
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
assert CONFIG_RESOURCE_BYTES_MAX + 64 * KIB < METADATA_COMMAND_DECOMPRESSED_MAX
assert BATCH_BYTES_MAX < FETCH_BYTES_MAX <= REQUEST_BYTES_MAX
assert FETCH_BYTES_MAX + BATCH_BYTES_MAX < RESPONSE_BYTES_MAX
assert (
    PRODUCER_BATCH_BYTES < BATCH_BYTES_MAX
    and PRODUCER_BATCH_BYTES <= PRODUCER_REQUEST_BYTES < PRODUCER_BUFFER_BYTES_MAX
)
assert CLIENT_IN_FLIGHT_REQUESTS_MAX <= IN_FLIGHT_REQUESTS_MAX

# -- coordinators (coordinator/)
GROUPS_MEMORY_SHARE = 8
GROUPS_MEMORY_BYTES_MIN = 256 * MIB
"""Default of `group.coordinator.memory.bytes`: an eighth of the memory, and no less than this."""
TRANSACTIONS_MEMORY_SHARE = 16
TRANSACTIONS_MEMORY_BYTES_MIN = 64 * MIB
"""Default of `transaction.coordinator.memory.bytes`, likewise."""
COORDINATOR_LOAD_BYTES = 64 * KIB
"""What is read of a coordinator's partition in one go when it comes to be led here: 800
offsets, 12 ms without a turn for others.
"""
TRANSACTIONS_PER_SEARCH = 500
"""Time-outs and unused transactional ids that one decision deals with; the search goes on a
moment later.
"""
MARKERS_PER_REQUEST = 1000
"""Markers that one WriteTxnMarkers asks for."""
SUBSCRIPTION_REGEX_MEMORY = 128 * KIB
"""What a compiled regular expression of a subscription may take: it bounds the time that
one topic name costs.
"""
SUBSCRIPTION_REGEX_STEPS = 1_000_000
"""Steps of matching (characters times instructions, 2 to 40 ns each) that a coordinator
takes in one go; the rest follows later.
"""
ASSIGNOR_CHAINS_MAX = 1_000
"""Chains of moves that one assignment of a group with different subscriptions may make,
after all single moves that help.
"""

# -- the log (log/)
SCAN_BYTES = 1 * MIB
"""What recovery and lookups read of a segment in one go."""
RECOVERY_BATCH_BYTES_MAX = REQUEST_BYTES_MAX
"""No batch on disk is larger than the largest request: a longer length is damage, and
nothing is allocated for it.
"""
SEGMENTS_OPEN_MAX = 8
"""Older segments of one log whose file and indexes are kept open; the active one always is."""
SEGMENTS_UNSYNCED_MAX = 64
"""Full segments of one log that wait for their sync, open; beyond it a batch that would
begin another is sent back to be tried again.
"""
OLDER_SEGMENTS_OPEN_MAX = 1_024
"""Older segments of all logs that are open, where descriptors are plenty."""
DESCRIPTORS_SPARE = 16
"""Descriptors that the logs hold back, for putting a log right after a write that found none."""
DESCRIPTORS_OTHERS = 256
"""Descriptors left to everything that is neither a log nor a connection of a client."""
POSITIONS_CACHED = 64
"""Batch borders of one log whose place in the file is remembered: where consumers will go on."""
INDEX_ENTRIES_BUFFERED = 64
"""Index entries of one segment that wait in memory for one write."""
FOLLOWER_BATCHES_MAX = 2048
"""Batches that a follower takes over before the event loop goes round: 5 ms of work."""
FOLLOWER_STRETCH_BYTES = 4 * MIB
"""Bytes that a follower takes over before the event loop goes round: 5 ms of CRCs and copying."""
SYNC_THREADS = 4
"""fdatasyncs of one log directory that run at the same time."""
CLEANED_RECORDS_PER_SLICE = 2048
"""Records that the cleaner of logs handles in a worker thread before others get the
processor: 5 to 9 ms of work.
"""
CLEANER_REST_SECONDS_MAX = 0.01
"""After a slice the cleaner rests as long as that took, and no longer than this: on a busy
machine most of it was waiting.
"""
CLEANER_BUFFER_BYTES_MIN = 1 * MIB
"""Of `log.cleaner.dedupe.buffer.size`: Kafka's, below which it does not start."""
DISK_RESERVE_BYTES = 1 * MIB
"""After a full disk, appends are tried again when more than this and the batch is free."""
assert RECOVERY_BATCH_BYTES_MAX >= BATCH_BYTES_MAX
