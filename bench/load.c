// Produce load: one thread, epoll, Produce v9, one record batch a request, made once and sent again and again.
//
//   load -h HOST -p PORT -T TOPIC [-c connections] [-d in flight on each] [-n requests] [-R records] [-s value bytes]
//        [-P partitions] [-a acks] [-r requests a second -t seconds] [-e] [-x]
//
// Without -r: as fast as answers come, each connection keeping -d requests in flight.
// With -r: at a fixed rate; a latency counts from the moment the request was due, so a stalled broker cannot hide.
// With -e: end to end; a second connection long-polls Fetch v11, and a latency ends when the record arrives there. (-c 1 -R 1)
// With -x: the peer is an echo, its answers are not looked into: the floor of the machine for the same frames.
// Prints one line of JSON.
#define _GNU_SOURCE
#include "wire.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

enum { RESPONSE_BYTES = 1 << 16, COPY_BYTES = 1 << 16, STALL_MS = 15000, FETCH_BYTES = 4 << 20, LATE_MAX = 1 << 16 };

static const char *host = "127.0.0.1", *port = "9092", *topic = "bench";
static int connections = 1, depth = 1, records = 1, value_bytes = 100, partitions = 1, acks = 1, end_to_end, echo;
static double rate, seconds;
static uint64_t total = 10000;

typedef struct {
    int fd, wants_write, in_flight;
    uint8_t *frames;         // `copies` equal frames in a row, of which only the correlation ids differ
    size_t frame_bytes, correlation_at;
    int copies, pending;     // requests that are due and not yet in a send
    size_t sending, sent;    // the current send: bytes in it, bytes gone
    uint32_t next_id, awaited_id;
    uint64_t *due;           // ring of the times from which latencies count
    uint64_t due_tail, due_head;
    size_t received;
    uint8_t buffer[RESPONSE_BYTES];
} Connection;

static int poller, ring;
static uint64_t *latencies, latency_count, sent_count, done_count, error_count;
static int first_error;

static void watch(int fd, int operation, uint32_t events, void *tag) {
    struct epoll_event event = {.events = events, .data = {.ptr = tag}};
    if (epoll_ctl(poller, operation, fd, &event)) die("epoll: %s", strerror(errno));
}

// -- requests

static size_t make_request(uint8_t *frame, int partition, size_t *correlation_at) {
    uint8_t *p = put16(put16(frame + 4, 0), 9);
    *correlation_at = p - frame;
    p = put8(put_string(put32(p, 0), "bench"), 0);
    p = put32(put16(put8(p, 0), acks), 30000);  // no transaction, timeout in ms
    size_t name_bytes = strlen(topic);
    p = put_bytes(put8(put8(p, 2), name_bytes + 1), topic, name_bytes);
    p = put32(put8(p, 2), partition);
    uint8_t *batch = allocate(batch_bytes_max(records, value_bytes));
    size_t size = make_batch(batch, records, value_bytes);
    p = put_bytes(put_varint(p, size + 1), batch, size);
    free(batch);
    p = put8(put8(put8(p, 0), 0), 0);
    put32(frame, p - frame - 4);
    return p - frame;
}

static void open_connection(Connection *c, int partition) {
    c->fd = connect_to(host, port);
    size_t bytes_max = batch_bytes_max(records, value_bytes) + 512;
    uint8_t *first = allocate(bytes_max);
    c->frame_bytes = make_request(first, partition, &c->correlation_at);
    c->copies = c->frame_bytes < COPY_BYTES ? COPY_BYTES / c->frame_bytes : 1;
    if (c->copies > depth) c->copies = depth;
    c->frames = allocate(c->frame_bytes * c->copies);
    for (int i = 0; i < c->copies; i++) memcpy(c->frames + i * c->frame_bytes, first, c->frame_bytes);
    free(first);
    c->due = allocate(sizeof *c->due * ring);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    watch(c->fd, EPOLL_CTL_ADD, EPOLLIN, c);
}

static void enqueue(Connection *c, uint64_t due) {
    if (c->in_flight == ring) die("%d requests are unanswered: the broker cannot keep this rate", ring);
    c->due[c->due_tail++ % ring] = due;
    c->in_flight++;
    c->pending++;
    sent_count++;
}

static void flush(Connection *c) {
    while (c->sent < c->sending || c->pending) {
        if (c->sent == c->sending) {
            int frames = c->pending < c->copies ? c->pending : c->copies;
            for (int i = 0; i < frames; i++) put32(c->frames + i * c->frame_bytes + c->correlation_at, c->next_id++);
            c->pending -= frames;
            c->sending = frames * c->frame_bytes;
            c->sent = 0;
        }
        ssize_t written = write(c->fd, c->frames + c->sent, c->sending - c->sent);
        if (written < 0) {
            if (errno != EAGAIN) die("write: %s", strerror(errno));
            if (!c->wants_write) watch(c->fd, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT, c);
            c->wants_write = 1;
            return;
        }
        c->sent += written;
    }
    if (c->wants_write) watch(c->fd, EPOLL_CTL_MOD, EPOLLIN, c);
    c->wants_write = 0;
}

// -- responses

static void check_response(Connection *c, const uint8_t *frame) {
    if (get32(frame + 4) != c->awaited_id++) die("answers are out of order: %u, awaited %u", get32(frame + 4), c->awaited_id - 1);
    const uint8_t *name = frame + 10;  // behind the header and the count of topics
    int error = get16(name + name[0] + 5);
    if (error) {
        error_count++;
        if (!first_error) first_error = error;
    }
}

static int receive(Connection *c) {  // how many answers came
    ssize_t got = read(c->fd, c->buffer + c->received, RESPONSE_BYTES - c->received);
    if (got < 0 && errno == EAGAIN) return 0;
    if (got <= 0) die("the broker closed the connection");
    c->received += got;
    size_t position = 0;
    int answers = 0;
    uint64_t now = now_ns();
    while (c->received - position >= 4) {
        size_t size = 4 + (size_t)get32(c->buffer + position);
        if (size > RESPONSE_BYTES) die("an answer of %zu bytes", size);
        if (c->received - position < size) break;
        if (!echo) check_response(c, c->buffer + position);
        uint64_t due = c->due[c->due_head++ % ring];
        if (!end_to_end) latencies[latency_count++] = now - due;
        c->in_flight--;
        done_count++;
        answers++;
        position += size;
    }
    memmove(c->buffer, c->buffer + position, c->received - position);
    c->received -= position;
    return answers;
}

// -- the other end of end to end

static struct { int fd; uint8_t *buffer, frame[1024]; size_t received, frame_bytes, offset_at; uint64_t base, offset, *due; } reader;

static void ask_reader(void) {
    put64(reader.frame + reader.offset_at, reader.offset);
    write_all(reader.fd, reader.frame, reader.frame_bytes);
}

static void open_reader(void) {
    reader.fd = connect_to(host, port);
    reader.buffer = allocate(FETCH_BYTES);
    reader.due = allocate(sizeof *reader.due * total);
    reader.base = reader.offset = list_offset(reader.fd, topic, 0, -1);
    reader.frame_bytes = make_fetch(reader.frame, topic, 0, FETCH_BYTES / 2, &reader.offset_at);
    ask_reader();
    fcntl(reader.fd, F_SETFL, O_NONBLOCK);
    watch(reader.fd, EPOLL_CTL_ADD, EPOLLIN, &reader);
}

static void read_records(void) {
    ssize_t got = read(reader.fd, reader.buffer + reader.received, FETCH_BYTES - reader.received);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) die("the broker closed the fetching connection");
    reader.received += got;
    if (reader.received < 4 || reader.received < 4 + (size_t)get32(reader.buffer)) return;
    uint64_t now = now_ns(), high_watermark;
    uint32_t size;
    uint8_t *batch = fetched_records(reader.buffer + 4, &size, &high_watermark), *end = batch + size;
    while (batch + BATCH_HEADER_BYTES <= end && batch + 12 + get32(batch + BATCH_LENGTH_AT) <= end) {
        uint64_t last = get64(batch) + get32(batch + BATCH_LAST_DELTA_AT);
        for (; reader.offset <= last; reader.offset++) {
            uint64_t index = reader.offset - reader.base;
            if (index < total) latencies[latency_count++] = now - reader.due[index];
        }
        batch += 12 + get32(batch + BATCH_LENGTH_AT);
    }
    reader.received = 0;
    ask_reader();
}

// -- the run

static int by_value(const void *left, const void *right) {
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return a < b ? -1 : a > b;
}

static double percentile_us(double part) { return latency_count ? latencies[(uint64_t)(part * (latency_count - 1))] / 1e3 : 0; }

static void arm(int timer, uint64_t at) {
    struct itimerspec when = {.it_value = {at / 1000000000ull, at % 1000000000ull}};
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL);
}

int main(int argc, char **argv) {
    for (int option; (option = getopt(argc, argv, "h:p:T:c:d:n:R:s:P:a:r:t:ex")) > 0;) switch (option) {
        case 'h': host = optarg; break;
        case 'p': port = optarg; break;
        case 'T': topic = optarg; break;
        case 'c': connections = atoi(optarg); break;
        case 'd': depth = atoi(optarg); break;
        case 'n': total = atoll(optarg); break;
        case 'R': records = atoi(optarg); break;
        case 's': value_bytes = atoi(optarg); break;
        case 'P': partitions = atoi(optarg); break;
        case 'a': acks = atoi(optarg); break;
        case 'r': rate = atof(optarg); break;
        case 't': seconds = atof(optarg); break;
        case 'e': end_to_end = 1; break;
        case 'x': echo = 1; break;
        default: return 2;
    }
    if (acks == 0 || strlen(topic) > 100) die("acks must be 1 or -1 (there are no answers to 0), the topic at most 100 bytes");
    if (end_to_end && (connections != 1 || records != 1)) die("end to end wants -c 1 -R 1");
    if (rate) total = rate * seconds;
    ring = rate ? LATE_MAX : depth;
    poller = epoll_create1(0);
    latencies = allocate(sizeof *latencies * total);
    Connection *all = allocate(sizeof *all * connections);
    for (int i = 0; i < connections; i++) open_connection(all + i, i % partitions);
    if (end_to_end) open_reader();

    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), turn = 0;
    const uint64_t start = now_ns(), interval = rate ? 1e9 / rate : 0;
    uint64_t due = start;
    if (rate) {
        watch(timer, EPOLL_CTL_ADD, EPOLLIN, &timer);
        arm(timer, due);
    } else {
        for (int i = 0; i < connections; i++) {
            for (int k = 0; k < depth && sent_count < total; k++) enqueue(all + i, now_ns());
            flush(all + i);
        }
    }
    struct epoll_event events[512];
    while (done_count < total || (end_to_end && latency_count < total)) {
        int ready = epoll_wait(poller, events, 512, STALL_MS);
        if (ready == 0) die("no answer for %d s: %lu of %lu requests answered", STALL_MS / 1000, done_count, total);
        for (int i = 0; i < ready; i++) {
            if (events[i].data.ptr == &timer) {
                for (uint64_t now = now_ns(); due <= now && sent_count < total; due += interval) {
                    Connection *c = all + turn++ % connections;
                    if (end_to_end) reader.due[sent_count] = due;
                    enqueue(c, due);
                    flush(c);
                }
                if (sent_count < total) arm(timer, due);
                else epoll_ctl(poller, EPOLL_CTL_DEL, timer, NULL);
            } else if (events[i].data.ptr == &reader) {
                read_records();
            } else {
                Connection *c = events[i].data.ptr;
                int answers = events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR) ? receive(c) : 0;
                uint64_t now = now_ns();
                if (!rate) for (; answers && sent_count < total; answers--) enqueue(c, now);
                flush(c);
            }
        }
    }
    double elapsed = (now_ns() - start) / 1e9;
    qsort(latencies, latency_count, sizeof *latencies, by_value);
    printf("{\"requests\": %lu, \"seconds\": %.6f, \"records\": %lu, \"bytes\": %lu, \"errors\": %lu, \"first_error\": %d, "
           "\"p50_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f, \"max_us\": %.1f, \"cpu_seconds\": %.3f}\n",
           done_count, elapsed, done_count * records, done_count * records * value_bytes, error_count, first_error, percentile_us(.5),
           percentile_us(.99), percentile_us(.999), percentile_us(1), cpu_seconds());
    return error_count ? 1 : 0;
}
