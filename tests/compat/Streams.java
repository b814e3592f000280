// A word count by Kafka Streams, exactly once: `java -cp 'lib/*' Streams.java HOST:PORT FOLDER`. In its second life the
// local state is gone, and comes back from the changelog.

import java.nio.file.*;
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.*;

public class Streams {
    static final long PATIENCE_MS = 120_000;

    public static void main(String[] arguments) throws Exception {
        String address = arguments[0];
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", address))) {
            admin.createTopics(List.of(new NewTopic("lines", 2, (short) 1), new NewTopic("counts", 1, (short) 1))).all().get();
        }
        Map<String, Long> expected = new TreeMap<>();
        for (int life = 1; life <= 2; life++) {
            Map<String, Object> how = Map.of("bootstrap.servers", address);
            try (KafkaProducer<String, String> producer = new KafkaProducer<>(how, new StringSerializer(), new StringSerializer())) {
                for (int n = 0; n < 200; n++) {
                    String word = "word" + n % 5;
                    producer.send(new ProducerRecord<>("lines", word, "the " + word));
                    expected.merge(word, 1L, Long::sum);
                    expected.merge("the", 1L, Long::sum);
                }
            }
            Properties config = new Properties();
            config.put("application.id", "words");
            config.put("bootstrap.servers", address);
            config.put("processing.guarantee", "exactly_once_v2");
            config.put("commit.interval.ms", 200);
            config.put("state.dir", Path.of(arguments[1], "life" + life).toString());
            StreamsBuilder builder = new StreamsBuilder();
            builder.stream("lines", Consumed.with(Serdes.String(), Serdes.String()))
                .flatMapValues(line -> List.of(line.split(" ")))
                .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
                .count(Materialized.with(Serdes.String(), Serdes.Long()))
                .toStream().to("counts", Produced.with(Serdes.String(), Serdes.Long()));
            Map<String, Long> found = new TreeMap<>();
            Map<String, Object> reading = Map.of("bootstrap.servers", address, "group.id", "judge" + life,
                "auto.offset.reset", "earliest", "isolation.level", "read_committed");
            try (KafkaStreams streams = new KafkaStreams(builder.build(), config);
                 KafkaConsumer<String, Long> judge = new KafkaConsumer<>(reading, new StringDeserializer(), new LongDeserializer())) {
                streams.start();
                judge.subscribe(List.of("counts"));
                long until = System.currentTimeMillis() + PATIENCE_MS;
                while (!found.equals(expected) && System.currentTimeMillis() < until)
                    for (ConsumerRecord<String, Long> record : judge.poll(Duration.ofMillis(500))) found.put(record.key(), record.value());
            }
            String name = "word count, exactly once, life " + life;
            System.out.println(found.equals(expected) ? "ok " + name : "failed " + name + ": " + found + ", not " + expected);
        }
    }
}
