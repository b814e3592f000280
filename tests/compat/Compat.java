// What Kafka's own Java client does with a broker, call by call: `java -cp 'lib/*' Compat.java HOST:PORT`.
// A line for each: "ok NAME", or "failed NAME: why".

import java.time.Duration;
import java.util.*;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.*;

public class Compat {
    interface Step { void run() throws Exception; }

    static String address;
    static final Duration POLL = Duration.ofMillis(500);
    static final long PATIENCE_MS = 60_000;

    static void step(String name, Step step) {
        try {
            step.run();
            System.out.println("ok " + name);
        } catch (Throwable error) {
            System.out.println("failed " + name + ": " + error + (error.getCause() == null ? "" : " / " + error.getCause()));
        }
    }

    static void check(boolean holds, String what) {
        if (!holds) throw new AssertionError(what);
    }

    static KafkaProducer<String, String> producer(Map<String, Object> more) {
        Map<String, Object> config = new HashMap<>(more);
        config.put("bootstrap.servers", address);
        return new KafkaProducer<>(config, new StringSerializer(), new StringSerializer());
    }

    static KafkaConsumer<String, String> consumer(String group, Map<String, Object> more) {
        Map<String, Object> config = new HashMap<>(more);
        config.put("bootstrap.servers", address);
        config.put("group.id", group);
        config.put("auto.offset.reset", "earliest");
        return new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer());
    }

    static List<String> read(KafkaConsumer<String, String> consumer, int count) {
        List<String> found = new ArrayList<>();
        long until = System.currentTimeMillis() + PATIENCE_MS;
        while (found.size() < count && System.currentTimeMillis() < until)
            for (ConsumerRecord<String, String> record : consumer.poll(POLL)) found.add(record.value());
        return found;
    }

    static <T> T of(org.apache.kafka.common.KafkaFuture<T> future) throws Exception {
        return future.get(60, TimeUnit.SECONDS);
    }

    static List<String> numbers(int first, int stop) {
        List<String> all = new ArrayList<>();
        for (int n = first; n < stop; n++) all.add("v" + n);
        return all;
    }

    static void send(KafkaProducer<String, String> producer, String topic, int first, int stop) {
        for (int n = first; n < stop; n++) producer.send(new ProducerRecord<>(topic, 0, "k" + n % 7, "v" + n));
    }

    /** Poll all of them in turn until each has a part of the partitions, and together they have all; what they read is added. */
    static void share(int partitions, Set<String> found, List<KafkaConsumer<String, String>> members) {
        long until = System.currentTimeMillis() + PATIENCE_MS;
        while (System.currentTimeMillis() < until) {
            Set<TopicPartition> assigned = new HashSet<>();
            int sum = 0;
            boolean each = true;
            for (KafkaConsumer<String, String> member : members) {
                for (ConsumerRecord<String, String> record : member.poll(Duration.ofMillis(100))) found.add(record.value());
                assigned.addAll(member.assignment());
                sum += member.assignment().size();
                each &= !member.assignment().isEmpty();
            }
            if (each && sum == partitions && assigned.size() == partitions) return;
        }
        throw new AssertionError("nobody came to share " + partitions + " partitions");
    }

    static void spread(String topic, int partitions, int first, int stop) {
        try (KafkaProducer<String, String> producer = producer(Map.of())) {
            for (int n = first; n < stop; n++) producer.send(new ProducerRecord<>(topic, n % partitions, "k", "v" + n));
        }
    }

    static String type(Admin admin, String group) throws Exception {
        for (GroupListing each : of(admin.listGroups().all()))
            if (each.groupId().equals(group)) return each.type().map(Object::toString).orElse("none");
        return "no group";
    }

    public static void main(String[] arguments) throws Exception {
        address = arguments[0];
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", address))) {
            step("create topics, one of them compacted", () -> of(admin.createTopics(List.of(
                new NewTopic("plain", 1, (short) 1),
                new NewTopic("exact", 1, (short) 3).configs(Map.of("min.insync.replicas", "2")),
                new NewTopic("table", 1, (short) 1).configs(Map.of("cleanup.policy", "compact", "segment.ms", "1000")))).all()));
            step("describe a topic, with its id", () ->
                check(!of(admin.describeTopics(List.of("plain")).allTopicNames()).get("plain").topicId().toString().equals("AAAAAAAAAAAAAAAAAAAAAA"), "no id"));
            step("describe settings as they were set", () -> {
                ConfigResource which = new ConfigResource(ConfigResource.Type.TOPIC, "table");
                Config found = of(admin.describeConfigs(List.of(which)).all()).get(which);
                check(found.get("cleanup.policy").value().equals("compact"), found.get("cleanup.policy").value());
                check(found.get("segment.ms").value().equals("1000"), found.get("segment.ms").value());
            });
            step("produce, idempotent, by its defaults", () -> {
                try (KafkaProducer<String, String> producer = producer(Map.of())) {
                    send(producer, "plain", 0, 1000);
                }
            });
            for (String codec : List.of("gzip", "snappy", "lz4", "zstd"))
                step("produce with " + codec, () -> {
                    try (KafkaProducer<String, String> producer = producer(Map.of("compression.type", codec))) {
                        check(producer.send(new ProducerRecord<>("table", "key", codec)).get().hasOffset(), "no offset");
                    }
                });
            for (String protocol : List.of("classic", "consumer"))
                step("consume in a group, commit and resume, protocol " + protocol, () -> {
                    Map<String, Object> how = Map.of("group.protocol", protocol, "max.poll.records", 400, "enable.auto.commit", false);
                    try (KafkaConsumer<String, String> first = consumer("group-" + protocol, how)) {
                        first.subscribe(List.of("plain"));
                        List<String> found = read(first, 400);
                        check(found.equals(numbers(0, found.size())), "not in order");
                        first.commitSync(Map.of(new TopicPartition("plain", 0), new OffsetAndMetadata(400)));
                    }
                    try (KafkaConsumer<String, String> second = consumer("group-" + protocol, how)) {
                        second.subscribe(List.of("plain"));
                        check(read(second, 600).equals(numbers(400, 1000)), "did not resume at 400");
                    }
                });
            step("a group moves to the consumer protocol and back while it runs", () -> {
                of(admin.createTopics(List.of(new NewTopic("moved", 4, (short) 1))).all());
                Map<String, Object> classic = Map.of("group.protocol", "classic"), modern = Map.of("group.protocol", "consumer");
                Set<String> found = new HashSet<>();
                spread("moved", 4, 0, 100);
                try (KafkaConsumer<String, String> b = consumer("moved", modern)) {
                    try (KafkaConsumer<String, String> a = consumer("moved", classic)) {
                        a.subscribe(List.of("moved"));
                        share(4, found, List.of(a));
                        check(type(admin, "moved").equals("Classic"), type(admin, "moved"));
                        b.subscribe(List.of("moved"));
                        share(4, found, List.of(a, b));
                        check(type(admin, "moved").equals("Consumer"), type(admin, "moved"));
                        spread("moved", 4, 100, 200);
                    }
                    share(4, found, List.of(b));
                    try (KafkaConsumer<String, String> c = consumer("moved", classic)) {
                        c.subscribe(List.of("moved"));
                        share(4, found, List.of(b, c));
                        spread("moved", 4, 200, 300);
                        b.close();
                        share(4, found, List.of(c));
                        check(type(admin, "moved").equals("Classic"), type(admin, "moved"));
                        long until = System.currentTimeMillis() + PATIENCE_MS;
                        while (found.size() < 300 && System.currentTimeMillis() < until) share(4, found, List.of(c));
                    }
                }
                check(found.equals(new HashSet<>(numbers(0, 300))), found.size() + " of 300 came");
            });
            step("a transaction that commits, one that aborts, one that commits", () -> {
                try (KafkaProducer<String, String> producer = producer(Map.of("transactional.id", "java"))) {
                    producer.initTransactions();
                    for (int turn = 0; turn < 3; turn++) {
                        producer.beginTransaction();
                        send(producer, "exact", 100 * turn, 100 * turn + 100);
                        producer.flush();
                        if (turn == 1) producer.abortTransaction(); else producer.commitTransaction();
                    }
                }
                try (KafkaConsumer<String, String> reader = consumer("exact", Map.of("isolation.level", "read_committed"))) {
                    reader.subscribe(List.of("exact"));
                    List<String> expected = numbers(0, 100);
                    expected.addAll(numbers(200, 300));
                    check(read(reader, 200).equals(expected), "not exactly what was committed");
                }
            });
            step("consume, transform, produce, with offsets in the transaction", () -> {
                try (KafkaConsumer<String, String> in = consumer("etl", Map.of("enable.auto.commit", false));
                     KafkaProducer<String, String> out = producer(Map.of("transactional.id", "etl"))) {
                    in.subscribe(List.of("plain"));
                    check(read(in, 1000).size() == 1000, "not all read");
                    out.initTransactions();
                    out.beginTransaction();
                    send(out, "exact", 300, 310);
                    out.sendOffsetsToTransaction(Map.of(new TopicPartition("plain", 0), new OffsetAndMetadata(1000)), in.groupMetadata());
                    out.commitTransaction();
                }
                check(of(admin.listConsumerGroupOffsets("etl").partitionsToOffsetAndMetadata()).get(new TopicPartition("plain", 0)).offset() == 1000, "offset");
            });
            step("a producer that comes back fences its former life", () -> {
                try (KafkaProducer<String, String> old = producer(Map.of("transactional.id", "zombie"));
                     KafkaProducer<String, String> young = producer(Map.of("transactional.id", "zombie"))) {
                    old.initTransactions();
                    young.initTransactions();
                    old.beginTransaction();
                    try {
                        old.send(new ProducerRecord<>("exact", 0, "k", "zombie"));
                        old.commitTransaction();
                        check(false, "the old one committed");
                    } catch (ProducerFencedException | InvalidProducerEpochException expected) {
                        old.close(Duration.ZERO);
                    }
                }
            });
            step("list offsets: earliest, latest, of the largest timestamp", () -> {
                TopicPartition which = new TopicPartition("plain", 0);
                check(of(admin.listOffsets(Map.of(which, OffsetSpec.earliest())).all()).get(which).offset() == 0, "earliest");
                check(of(admin.listOffsets(Map.of(which, OffsetSpec.latest())).all()).get(which).offset() == 1000, "latest");
                check(of(admin.listOffsets(Map.of(which, OffsetSpec.maxTimestamp())).all()).get(which).offset() >= 0, "max timestamp");
            });
            step("groups of both protocols", () -> check(of(admin.listGroups().all()).size() >= 3, "groups"));
            step("describe a group of the consumer protocol", () ->
                check(of(admin.describeConsumerGroups(List.of("group-consumer")).all()).containsKey("group-consumer"), "group"));
            step("describe transactions", () -> check(!of(admin.listTransactions().all()).isEmpty(), "none"));
            step("describe log dirs", () -> check(!of(admin.describeLogDirs(List.of(1)).allDescriptions()).isEmpty(), "none"));
            step("reassignments, quotas, elections", () -> {
                check(of(admin.listPartitionReassignments().reassignments()).isEmpty(), "reassignments");
                of(admin.describeClientQuotas(org.apache.kafka.common.quota.ClientQuotaFilter.all()).entities());
            });
            step("more partitions", () -> of(admin.createPartitions(Map.of("plain", NewPartitions.increaseTo(3))).all()));
            step("delete records", () ->
                of(admin.deleteRecords(Map.of(new TopicPartition("exact", 0), RecordsToDelete.beforeOffset(10))).all()));
            step("delete topics", () -> of(admin.deleteTopics(List.of("plain", "exact", "table")).all()));
        }
    }
}
