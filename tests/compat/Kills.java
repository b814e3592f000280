// A transactional producer whose broker is killed: `java -cp 'lib/*' Kills.java`. Each line of the input is the address of a
// broker, each line of the output an address and what became of it there, in any order (see tests/support/broker/client_kills.py, which tells the story).

import java.io.*;
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.*;

public class Kills {
    static final String GROUP = "g", ZOMBIE = "zombie", END = "end";
    static final int TRIES = 3;
    final String address;
    final List<String> committed = new ArrayList<>(), unknown = new ArrayList<>();
    boolean zombieCommitted;
    KafkaProducer<String, String> producer;

    Kills(String address) {
        this.address = address;
        producer = newLife();
    }

    /** A call that has timed out may be made again, and no other. */
    static void untilDone(Runnable step) {
        for (int tries = 1; ; tries++)
            try {
                step.run();
                return;
            } catch (TimeoutException error) {
                if (tries == TRIES) throw error;
            }
    }

    KafkaProducer<String, String> newLife() {
        Map<String, Object> how = Map.of("bootstrap.servers", address, "transactional.id", "tx");
        KafkaProducer<String, String> made = new KafkaProducer<>(how, new StringSerializer(), new StringSerializer());
        untilDone(made::initTransactions);
        return made;
    }

    void replace() {
        producer.close(Duration.ZERO);
        producer = newLife();
    }

    static void begin(KafkaProducer<String, String> producer, String value) {
        producer.beginTransaction();
        for (int partition = 0; partition < 2; partition++) producer.send(new ProducerRecord<>("t", partition, null, value));
    }

    void transaction(String value, boolean commit, int offset) {
        boolean isEnding = false;
        try {
            begin(producer, value);
            if (offset >= 0) {
                Map<TopicPartition, OffsetAndMetadata> offsets = Map.of(new TopicPartition("t", 0), new OffsetAndMetadata(offset));
                untilDone(() -> producer.sendOffsetsToTransaction(offsets, new ConsumerGroupMetadata(GROUP)));
            }
            if (commit) {
                isEnding = true;
                untilDone(producer::commitTransaction);
                committed.add(value);
            } else untilDone(producer::abortTransaction);
        } catch (KafkaException error) {
            try {
                untilDone(producer::abortTransaction);
                isEnding = false;
            } catch (KafkaException fatal) {
                replace();
            }
            if (isEnding) unknown.add(value);
        }
    }

    List<String> read(int partition) {
        Map<String, Object> how = Map.of("bootstrap.servers", address, "isolation.level", "read_committed", "auto.offset.reset", "earliest");
        List<String> values = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(how, new StringDeserializer(), new StringDeserializer())) {
            consumer.assign(List.of(new TopicPartition("t", partition)));
            long until = System.nanoTime() + 100_000_000_000L;
            while (!values.contains(END) && System.nanoTime() < until)
                for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofMillis(200))) values.add(each.value());
        }
        return values;
    }

    String story() {
        for (int number = 0; number < 3; number++) transaction("" + number, number != 1, number);
        KafkaProducer<String, String> former = producer;
        begin(former, ZOMBIE);
        former.flush();
        producer = newLife();
        try {
            untilDone(former::commitTransaction);
            zombieCommitted = true;
        } catch (KafkaException fenced) {
            former.close(Duration.ZERO);
        }
        while (!committed.contains(END) && !unknown.contains(END)) transaction(END, true, -1);
        producer.close();
        String offset = "";
        Map<String, Object> how = Map.of("bootstrap.servers", address, "group.id", GROUP);
        try (KafkaConsumer<String, String> group = new KafkaConsumer<>(how, new StringDeserializer(), new StringDeserializer())) {
            TopicPartition which = new TopicPartition("t", 0);
            OffsetAndMetadata found = group.committed(Set.of(which)).get(which);
            if (found != null) offset += found.offset();
        }
        return String.join(";", String.join(",", committed), String.join(",", unknown), zombieCommitted ? ZOMBIE : "",
            String.join(",", read(0)), String.join(",", read(1)), offset);
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String address = line;
            new Thread(() -> System.out.println(address + ";" + told(address))).start();
        }
    }

    static String told(String address) {
        try {
            return new Kills(address).story();
        } catch (RuntimeException error) {
            return "failed: " + error.toString().replace('\n', ' ');
        }
    }
}
