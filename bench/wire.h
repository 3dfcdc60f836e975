// What both generators need of Kafka's protocol: big-endian writers, a sealed record batch, a connection, a clock.
#ifndef MQD_BENCH_WIRE_H
#define MQD_BENCH_WIRE_H
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

static void *allocate(size_t size) {
    void *memory = calloc(1, size ? size : 1);
    if (!memory) die("out of memory: %zu bytes", size);
    return memory;
}

static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static double cpu_seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

// -- writers: each returns the position after what it wrote

static uint8_t *put8(uint8_t *p, int value) { *p++ = value; return p; }
static uint8_t *put16(uint8_t *p, int value) { *p++ = value >> 8; *p++ = value; return p; }
static uint8_t *put32(uint8_t *p, uint32_t value) { p = put16(p, value >> 16); return put16(p, value); }
static uint8_t *put64(uint8_t *p, uint64_t value) { p = put32(p, value >> 32); return put32(p, value); }

static uint8_t *put_varint(uint8_t *p, uint64_t value) {
    for (; value > 127; value >>= 7) *p++ = value | 128;
    *p++ = value;
    return p;
}

static uint8_t *put_zigzag(uint8_t *p, int64_t value) { return put_varint(p, ((uint64_t)value << 1) ^ (value >> 63)); }

static uint8_t *put_bytes(uint8_t *p, const void *bytes, size_t size) { memcpy(p, bytes, size); return p + size; }

static uint8_t *put_string(uint8_t *p, const char *text) {
    size_t size = strlen(text);
    return put_bytes(put16(p, size), text, size);
}

static uint32_t get32(const uint8_t *p) { return (uint32_t)p[0] << 24 | p[1] << 16 | p[2] << 8 | p[3]; }
static uint64_t get64(const uint8_t *p) { return (uint64_t)get32(p) << 32 | get32(p + 4); }
static int16_t get16(const uint8_t *p) { return (int16_t)(p[0] << 8 | p[1]); }

// -- record batches (magic 2)

enum { BATCH_HEADER_BYTES = 61, BATCH_LENGTH_AT = 8, BATCH_CRC_AT = 17, BATCH_CRC_FROM = 21, BATCH_LAST_DELTA_AT = 23 };

static uint32_t crc32c(const uint8_t *bytes, size_t size) {  // once for each run, so a bit at a time will do
    uint32_t crc = ~0u;
    for (size_t i = 0; i < size; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    }
    return ~crc;
}

static inline size_t batch_bytes_max(int records, int value_bytes) { return BATCH_HEADER_BYTES + (size_t)records * (value_bytes + 32); }

static inline size_t make_batch(uint8_t *out, int records, int value_bytes) {
    const uint64_t timestamp = (uint64_t)time(NULL) * 1000;
    uint8_t *p = put64(out, 0);          // base offset
    p = put32(put32(p, 0), -1);          // length (below), leader epoch
    p = put32(put8(p, 2), 0);            // magic, crc (below)
    p = put32(put16(p, 0), records - 1); // attributes, last offset delta
    p = put64(put64(p, timestamp), timestamp);
    p = put16(put64(p, -1), -1);         // no producer id and epoch
    p = put32(put32(p, -1), records);    // no base sequence
    for (int i = 0; i < records; i++) {
        uint8_t head[32], *q = put8(head, 0);
        q = put_zigzag(put_zigzag(q, 0), i);             // timestamp and offset deltas
        q = put_zigzag(put_zigzag(q, -1), value_bytes);  // no key
        p = put_zigzag(p, q - head + value_bytes + 1);
        p = put_bytes(p, head, q - head);
        for (int k = 0; k < value_bytes; k++) *p++ = 'a' + (i + k) % 26;
        p = put8(p, 0);                                  // no headers
    }
    put32(out + BATCH_LENGTH_AT, p - out - BATCH_LENGTH_AT - 4);
    put32(out + BATCH_CRC_AT, crc32c(out + BATCH_CRC_FROM, p - out - BATCH_CRC_FROM));
    return p - out;
}

// -- connections

static int connect_to(const char *host, const char *port) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    int error = getaddrinfo(host, port, &hints, &found);
    if (error) die("%s:%s: %s", host, port, gai_strerror(error));
    int fd = socket(found->ai_family, SOCK_STREAM, 0), one = 1;
    if (fd < 0 || connect(fd, found->ai_addr, found->ai_addrlen)) die("cannot connect to %s:%s: %s", host, port, strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    freeaddrinfo(found);
    return fd;
}

static void write_all(int fd, const uint8_t *bytes, size_t size) {
    while (size) {
        ssize_t written = write(fd, bytes, size);
        if (written <= 0) die("write: %s", strerror(errno));
        bytes += written;
        size -= written;
    }
}

static void read_all(int fd, uint8_t *bytes, size_t size) {
    while (size) {
        ssize_t got = read(fd, bytes, size);
        if (got <= 0) die("the broker closed the connection");
        bytes += got;
        size -= got;
    }
}

// The offset that ListOffsets v1 gives for a timestamp: -1 the end, -2 the beginning.
static uint64_t list_offset(int fd, const char *topic, int partition, int64_t timestamp) {
    uint8_t frame[1024], *p = put16(put16(frame + 4, 2), 1);
    p = put_string(put32(p, 1), "bench");
    p = put32(put32(p, -1), 1);  // replica id; one topic
    p = put32(put_string(p, topic), 1);
    p = put64(put32(p, partition), timestamp);
    put32(frame, p - frame - 4);
    write_all(fd, frame, p - frame);
    read_all(fd, frame, 4);
    uint32_t size = get32(frame);
    if (size > sizeof frame) die("ListOffsets: an answer of %u bytes", size);
    read_all(fd, frame, size);
    if (get16(frame + size - 18)) die("ListOffsets: error %d", get16(frame + size - 18));
    return get64(frame + size - 8);
}

// A Fetch v11 frame for one partition; its offset goes in at *offset_at before each use. Returns its size.
static size_t make_fetch(uint8_t *frame, const char *topic, int partition, uint32_t max_bytes, size_t *offset_at) {
    uint8_t *p = put16(put16(frame + 4, 1), 11);
    p = put_string(put32(p, 1), "bench");
    p = put32(put32(put32(p, -1), 500), 1);                // replica id, max wait in ms, min bytes
    p = put32(put32(put8(put32(p, max_bytes), 0), 0), -1);  // isolation level, no session
    p = put32(put_string(put32(p, 1), topic), 1);
    p = put32(put32(p, partition), -1);
    *offset_at = p - frame;
    p = put64(put64(p, 0), -1);                            // offset, log start offset
    p = put16(put32(put32(p, max_bytes), 0), 0);           // nothing forgotten, no rack
    put32(frame, p - frame - 4);
    return p - frame;
}

// The record bytes within a Fetch v11 response for one partition (behind its length bytes); dies on an error code.
static uint8_t *fetched_records(uint8_t *body, uint32_t *size, uint64_t *high_watermark) {
    if (get16(body + 8)) die("fetch: error %d", get16(body + 8));
    if (get32(body + 14) != 1) die("fetch: %u topics in the answer", get32(body + 14));
    uint8_t *p = body + 18;
    p += 2 + get16(p) + 4;  // topic, one partition
    if (get16(p + 4)) die("fetch: error %d", get16(p + 4));
    *high_watermark = get64(p + 6);
    uint32_t aborted = get32(p + 30);
    p += 34 + (aborted == UINT32_MAX ? 0 : 16 * (size_t)aborted) + 4;  // preferred read replica
    *size = get32(p) == UINT32_MAX ? 0 : get32(p);
    return p + 4;
}
#endif
