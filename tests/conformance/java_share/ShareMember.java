// A member of a share group, by Apache Kafka's KafkaShareConsumer. tests/conformance/
// share_processes.py starts it, with the commands and results of franz_go/main.go.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

public final class ShareMember {
    private static final Duration PATIENCE = Duration.ofSeconds(30);

    private final KafkaShareConsumer<String, String> consumer;
    private final Map<String, ConsumerRecord<String, String>> polled = new HashMap<>();

    private ShareMember(KafkaShareConsumer<String, String> consumer) {
        this.consumer = consumer;
    }

    private String poll(long milliseconds) {
        List<String> rows = new ArrayList<>();
        polled.clear();
        for (ConsumerRecord<String, String> one : consumer.poll(Duration.ofMillis(milliseconds))) {
            polled.put(one.partition() + ":" + one.offset(), one);
            rows.add(String.format("[%d, %d, %d, \"%s\"]", one.partition(), one.offset(),
                one.deliveryCount().orElse((short) 0), one.value()));
        }
        return rows.toString();
    }

    private String acknowledge(String[] words) {
        AcknowledgeType type = AcknowledgeType.valueOf(words[1].toUpperCase(Locale.ROOT));
        for (int i = 2; i < words.length; i++) {
            consumer.acknowledge(polled.get(words[i]), type);
        }
        return "null";
    }

    private String flush() {
        Map<TopicIdPartition, Optional<KafkaException>> results = consumer.commitSync(PATIENCE);
        List<String> rows = new ArrayList<>();
        results.forEach((place, error) -> rows.add(String.format("[%d, %s]", place.partition(),
            error.map(one -> "\"" + one.getClass().getSimpleName() + "\"").orElse("null"))));
        return rows.toString();
    }

    private String run(String command) {
        String[] words = command.split(" ");
        switch (words[0]) {
            case "poll":
                return poll(Long.parseLong(words[1]));
            case "ack":
                return acknowledge(words);
            case "flush":
                return flush();
            default:
                throw new IllegalArgumentException(command);
        }
    }

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.put("key.deserializer", StringDeserializer.class.getName());
        properties.put("value.deserializer", StringDeserializer.class.getName());
        for (int i = 1; i < arguments.length; i++) {
            String[] pair = arguments[i].split("=", 2);
            properties.put(pair[0], pair[1]);
        }
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(properties)) {
            consumer.subscribe(List.of(arguments[0]));
            ShareMember member = new ShareMember(consumer);
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                System.out.println(member.run(line));
            }
        }
    }
}
