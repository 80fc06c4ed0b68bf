"""Every bound of the system, with its unit in its name and its reason beside it.

A queue, buffer, loop or wait that could grow takes its limit from here, so that an operator can
read in one place what Ringdove will never exceed.
"""

#: Messages in one block. Large enough for Arrow batches of 10,000 rows, small enough that one
#: block's index columns stay in a CPU cache.
BLOCK_MESSAGES_MAX = 65_536

#: Bytes of one block, header included, compressed or not. Offsets inside a block are int32; a
#: quarter of that range leaves room for three columns, and one block is held in memory whole.
BLOCK_BYTES_MAX = 64 * 1024 * 1024

#: The most a compressed block may grow when it is opened, as a multiple of its size. Bounds what a
#: hostile sender can make a receiver allocate.
COMPRESSION_RATIO_MAX = 1_000

#: Bytes that a producer gathers before it closes a block. Blocks of about 1 MB were fastest into
#: Arrow and amortise a disk commit well.
BLOCK_BYTES_TARGET = 1024 * 1024

#: Messages that a producer gathers before it closes a block.
BLOCK_MESSAGES_TARGET = 10_000

#: Default and highest `body_bytes_max` of a queue.
BODY_BYTES_MAX_DEFAULT = 1024 * 1024
BODY_BYTES_MAX = 16 * 1024 * 1024

#: Bytes of a message key. Keys are group names and device ids, not payloads.
KEY_BYTES_MAX = 1024

#: Bytes of the encoded attributes of one message; as large as a default body.
ATTRIBUTES_BYTES_MAX = 1024 * 1024

#: Attributes of one message, and values of one that is a list.
ATTRIBUTES_MAX = 64
ATTRIBUTE_LIST_MAX = 64

#: Bytes of a message id given by the sender for deduplication.
MESSAGE_ID_BYTES_MAX = 256

#: Milliseconds between the oldest and the newest message of one block: send times are stored as
#: unsigned 32-bit differences.
BLOCK_SPAN_MS_MAX = 2**32 - 1

#: Characters of a queue or subscription name.
NAME_CHARS_MAX = 96

#: Messages that a receive of fewer looks at to find those of one group, where order is by key.
LOOK_AHEAD = 256

#: Bytes of a queue's notes: they travel with its settings.
NOTES_BYTES_MAX = 128 * 1024

#: Stripes of one queue.
STRIPES_MAX = 256

#: Highest priority of a message; each level is a sub-stripe of its own.
PRIORITY_MAX = 9

#: Candidates among which a receive may choose (the K hint).
SPREAD_MAX = 1_000

#: Subscriptions of one queue.
SUBSCRIPTIONS_MAX = 1_000

#: Messages that one lease call may hand out.
LEASE_MESSAGES_MAX = 100_000

#: Bytes of messages after which a lease call hands out no more blocks.
LEASE_BYTES_MAX = BLOCK_BYTES_MAX

#: Expired leases and due delays that one lease call moves to the ready list. Keeps a call short
#: after a mass expiry; the next calls move the rest.
PROMOTE_PER_CALL_MAX = 1_000

#: Messages of delayed blocks or locked groups that one lease call may pass over before it answers.
SCAN_PER_CALL_MAX = 20_000

#: Leases outstanding on one subscription. Each costs about 400 bytes of memory.
LEASES_MAX = 1_000_000

#: Offsets stay below 2^53, so that every language and JSON carries them exactly.
OFFSET_MAX = 2**53

#: Offsets that a stripe of a fabric may use up under one master: the next one goes on at the next
#: multiple (SKIP in library.lua). So half as many, or more, at once are not all messages.
EPOCH_OFFSETS = 2**32

#: Milliseconds for which a full stripe remembers a producer of one job's messages: a task that is
#: tried again comes sooner. Others are remembered for as long as the queue keeps messages.
JOB_PRODUCER_MS = 3600 * 1000

#: Milliseconds after which a full stripe looks again for producers to forget, if none was due.
PRODUCERS_LOOK_MS = 60_000

#: Producers whose sequence a stripe remembers for exactly-once delivery.
PRODUCERS_MAX = 100_000

#: Message ids that one append forgets when their window has passed, beyond as many as it brings.
FORGET_PER_APPEND_MAX = 64

#: Bytes of blocks kept in memory for readers of the tail, per store.
BLOCK_CACHE_BYTES_MAX = 64 * 1024 * 1024

#: Freed bytes that a server or a worker of Spark keeps for what comes next: those of a large send.
FREED_BYTES_KEPT = 64 * 1024 * 1024

#: Queue settings that a controller remembers between look-ups.
SETTINGS_CACHE_MAX = 10_000

#: Stripes whose index stays in memory; those of idle queues beyond it are dropped and read again.
STRIPES_LOADED_MAX = 10_000

#: Bytes of appends in one commit; a larger pile is split over several commits.
COMMIT_BYTES_MAX = 64 * 1024 * 1024

#: A server commits on its event loop while commits take less than this and are smaller; otherwise
#: a thread does, which costs two switches and keeps receivers going meanwhile.
INLINE_COMMIT_S_MAX = 0.001
INLINE_COMMIT_BYTES_MAX = 256 * 1024

#: Blocks of a commit that goes to the journal: beyond it, writing them twice costs more than the
#: second sync that the journal saves.
JOURNAL_COMMIT_BYTES_MAX = 64 * 1024

#: Such a commit with all of its edits, for some acknowledgements change very many.
JOURNAL_RECORD_BYTES_MAX = 128 * 1024

#: A journal's size at first, and at most: it grows where it is filled within its time. All of it
#: goes into the tree even when the disk is full: less than what is set aside for that.
JOURNAL_BYTES = 256 * 1024
JOURNAL_BYTES_MAX = 2 * 1024 * 1024

#: Small commits of a process before one goes to the journal: a command that does one thing would
#: have the tree catch up at once.
JOURNAL_AFTER = 4

#: Milliseconds after which the tree gets what the journal has.
JOURNAL_MS = 1_000

#: Milliseconds after which leases reach the disk when no other commit takes them along. A lease
#: need not survive a crash, so it never pays for a sync of its own.
LEASE_FLUSH_MS = 200

#: Milliseconds between two looks for blocks that retention says may go.
RETENTION_CHECK_MS = 1_000

#: Stripes, and records, that one such look visits beyond those in use.
SWEEP_STRIPES_MAX = 16
SWEEP_RECORDS_MAX = 1_000

#: Sweeps from one look for readers of the data directory that were killed to the next.
SWEEPS_PER_READER_CHECK = 60

#: Blocks that one commit trims; the rest goes with the next one.
TRIM_BLOCKS_PER_COMMIT_MAX = 4_096

#: Blocks that a producer keeps unacknowledged before `send` waits.
PRODUCER_BLOCKS_IN_FLIGHT_MAX = 8

#: Bytes of virtual address space reserved for the embedded store's file; it costs no disk or
#: memory.
MAP_BYTES = 1 << 40

#: Largest value of any duration setting: ten years, in milliseconds.
DURATION_MS_MAX = 10 * 366 * 24 * 3600 * 1000

#: Bytes of one record.
RECORD_BYTES_MAX = 1024 * 1024

#: Bytes of one frame of the native protocol after its header: a block of the largest size and what
#: goes with it; and before the peer has introduced itself.
FRAME_BYTES_MAX = BLOCK_BYTES_MAX + 4 * 1024 * 1024
FRAME_BYTES_MAX_BEFORE_HELLO = 16 * 1024

#: Seconds for HELLO and for any frame to arrive whole, once begun; and of silence, after which the
#: other side is taken for dead.
HELLO_S_MAX = 10
FRAME_S_MAX = 60
IDLE_S_MAX = 90

#: Requests of one connection that wait for their answers, and the bytes in them: beyond, the server
#: stops reading from it.
REQUESTS_IN_FLIGHT_MAX = 1_024
REQUESTS_BYTES_MAX = 64 * 1024 * 1024

#: Receives of one connection that may wait for messages.
RECEIVES_PARKED_MAX = 100_000

#: Bytes written and not taken by the other side: beyond the first, no more is begun for it; beyond
#: the second it is dropped.
WRITE_BUFFER_BYTES = 4 * 1024 * 1024
WRITE_BUFFER_BYTES_MAX = 256 * 1024 * 1024

#: Connections of one server.
CONNECTIONS_MAX = 100_000

#: Seconds that a closing server gives requests to finish.
DRAIN_S_MAX = 10

#: Milliseconds after which a node of a fabric counts as slow (T3.5).
SLOWDOWN_MS = 400

#: A send of at most so many messages and bytes may share a block with others (E-Ctrl).
JOIN_MESSAGES_MAX = 100
JOIN_BYTES_MAX = 64 * 1024

#: How often what has come meanwhile is dealt with before a waiting receiver looks, while receivers
#: find several messages at a time and it wants more than one: each then gets more at once.
LINGER_TURNS = 3

#: Bytes of blocks that a stream may send ahead of its acknowledgements.
STREAM_WINDOW_BYTES_MAX = 256 * 1024 * 1024
STREAM_WINDOW_BYTES = 16 * 1024 * 1024

#: How long the claim of a stream outlives its reader's last sign of life, in milliseconds.
STREAM_LEASE_MS = 30_000

#: Bytes of the body of one HTTP request: a block of the largest size, or the largest batch however
#: it is escaped.
HTTP_BODY_BYTES_MAX = BLOCK_BYTES_MAX

#: Bytes of the request line and headers of one HTTP request.
HTTP_HEAD_BYTES_MAX = 64 * 1024

#: Connections that wait to be accepted: thousands of devices may come at once.
HTTP_BACKLOG = 2_048

#: Seconds that a session of the console lasts: a working day.
SESSION_S_MAX = 12 * 3600

#: Failed attempts to sign in, after which a minute must pass.
LOGIN_FAILURES_MAX = 10

#: Streams of live figures; and queues that one of them shows: a page of a table.
FEEDS_MAX = 256
FEED_QUEUES_MAX = 200

#: CoAP requests per second, unless a server is told otherwise: as many as one core handles beside
#: other work.
COAP_RATE = 2_000

#: Requests over CoAP that a server remembers to recognise repetitions, for 247 s: those of the rate
#: above, at about 110 bytes each; and the bytes of their answers.
COAP_EXCHANGES_MAX = 600_000
COAP_EXCHANGE_BYTES_MAX = 64 * 1024 * 1024

#: Requests over CoAP under way, most of them parked; and observations. Each takes a few KB.
COAP_REQUESTS_MAX = 10_000
COAP_OBSERVERS_MAX = 20_000

#: Notifications and late responses over CoAP that are on their way, of up to 1 KB each: one for
#: each observer, and as many again as there may be requests.
COAP_UNACKNOWLEDGED_MAX = COAP_OBSERVERS_MAX + COAP_REQUESTS_MAX

#: Seconds that a receive over CoAP waits, and after which an observer that had nothing to hear is
#: asked for a sign of life.
COAP_WAIT_S_MAX = 60
COAP_SILENCE_S_MAX = 3_600

#: Bytes of a body over CoAP, in 1,024 blocks; bodies half way up or down, and all their bytes.
COAP_BODY_BYTES_MAX = 1024 * 1024
COAP_TRANSFERS_MAX = 1_000
COAP_TRANSFER_BYTES_MAX = 64 * 1024 * 1024

#: Queues that resource discovery over CoAP lists.
COAP_LINKS_MAX = 1_000

#: Seconds that a Java may take to say its version: a tenth of one, or a few on a busy machine.
JAVA_ANSWER_SECONDS_MAX = 30

#: Bytes of one MQTT packet; a body of the default size fits in.
MQTT_PACKET_BYTES_MAX = 1024 * 1024

#: Bytes of one MQTT packet before the client was let in.
MQTT_CONNECT_BYTES_MAX = 256 * 1024

#: Messages of QoS 1 and 2 that an MQTT client may have on their way to the server, and the server
#: to a client at most; each costs some hundred bytes.
MQTT_RECEIVE_MAXIMUM = 1_024
MQTT_WINDOW_MAX = 1_024

#: Bytes in memory of messages of one client that are being stored, about 8,000 of the smallest:
#: beyond, the server stops reading from it.
MQTT_STORING_BYTES_MAX = 4 * 1024 * 1024

#: MQTT sessions that a server remembers, and topic filters of one of them.
MQTT_SESSIONS_MAX = 200_000
MQTT_SUBSCRIPTIONS_MAX = 1_000

#: Bytes that wait for a session that survives its connection; beyond, the oldest are dropped, so
#: that a device that is gone for ever does not stop those who publish.
MQTT_SESSION_BYTES_MAX = 64 * 1024 * 1024

#: Messages, and their bytes, that wait in memory for a session that ends with its connection.
MQTT_BACKLOG_MAX = 10_000
MQTT_BACKLOG_BYTES_MAX = 8 * 1024 * 1024

#: Retained messages and their bytes, topics and properties included: all of them are in memory.
MQTT_RETAINED_MAX = 100_000
MQTT_RETAINED_BYTES_MAX = 256 * 1024 * 1024

#: Queues that devices may bring into being by publishing to topics that no rule names; and as many
#: by subscribing to topics that a rule has queues for.
MQTT_QUEUES_MAX = 10_000

#: Routes of topics that are remembered until subscriptions change, and characters of the topics.
MQTT_ROUTES_MAX = 100_000
MQTT_ROUTES_CHARS_MAX = 16 * 1024 * 1024

#: Bytes of a client identifier.
MQTT_CLIENT_ID_BYTES_MAX = 256

#: Bytes that one look at a session's messages reads.
MQTT_READ_BYTES_MAX = 256 * 1024

#: Seconds that devices have to come back after a restart before their wills are published.
MQTT_WILL_GRACE_S = 10

#: Milliseconds for which a message of QoS 2 is recognised if a crash came between its storing and
#: the note of its identifier.
MQTT_DEDUP_MS = 24 * 3600 * 1000
