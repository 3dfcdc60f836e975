// Fetch drain: Fetch v11 of one partition, over and over from its beginning, as fast as the answers come. Blocking, one in flight.
//
//   drain -h HOST -p PORT -T TOPIC [-P partition] [-n bytes of records] [-m bytes a fetch]
//
// Prints one line of JSON.
#include "wire.h"

int main(int argc, char **argv) {
    const char *host = "127.0.0.1", *port = "9092", *topic = "bench";
    int partition = 0;
    uint32_t max_bytes = 1 << 20;
    uint64_t wanted = 1 << 30;
    for (int option; (option = getopt(argc, argv, "h:p:T:P:n:m:")) > 0;) switch (option) {
        case 'h': host = optarg; break;
        case 'p': port = optarg; break;
        case 'T': topic = optarg; break;
        case 'P': partition = atoi(optarg); break;
        case 'n': wanted = atoll(optarg); break;
        case 'm': max_bytes = atol(optarg); break;
        default: return 2;
    }
    int fd = connect_to(host, port);
    const uint64_t first = list_offset(fd, topic, partition, -2);
    uint8_t frame[1024];
    size_t offset_at, frame_bytes = make_fetch(frame, topic, partition, max_bytes, &offset_at);
    size_t buffer_bytes = (size_t)max_bytes * 2 + (4 << 20);  // the first batch comes whole, whatever its size
    uint8_t *buffer = allocate(buffer_bytes);
    uint64_t offset = first, bytes = 0, messages = 0, requests = 0, start = now_ns();
    while (bytes < wanted) {
        put64(frame + offset_at, offset);
        write_all(fd, frame, frame_bytes);
        read_all(fd, buffer, 4);
        uint32_t answer_bytes = get32(buffer), size;
        if (answer_bytes > buffer_bytes) die("an answer of %u bytes", answer_bytes);
        read_all(fd, buffer, answer_bytes);
        uint64_t high_watermark, before = offset;
        uint8_t *batch = fetched_records(buffer, &size, &high_watermark), *end = batch + size;
        while (batch + BATCH_HEADER_BYTES <= end && batch + 12 + get32(batch + BATCH_LENGTH_AT) <= end) {
            offset = get64(batch) + get32(batch + BATCH_LAST_DELTA_AT) + 1;
            batch += 12 + get32(batch + BATCH_LENGTH_AT);
        }
        if (offset == before) die("nothing at offset %lu, high watermark %lu: is the topic empty?", offset, high_watermark);
        messages += offset - before;
        bytes += size;
        requests++;
        if (offset >= high_watermark) offset = first;
    }
    printf("{\"requests\": %lu, \"seconds\": %.6f, \"records\": %lu, \"bytes\": %lu, \"cpu_seconds\": %.3f}\n", requests,
           (now_ns() - start) / 1e9, messages, bytes, cpu_seconds());
    return 0;
}
