// Every call of Kafka's Java admin client, once: `java -cp 'lib/*' AdminCalls.java HOST:PORT`.
// A line for each: "ok NAME", "ok NAME: refused, ERROR" where that is what this broker says of it, or "failed NAME: why".

import java.time.Duration;
import java.util.*;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.acl.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.quota.*;
import org.apache.kafka.common.resource.*;
import org.apache.kafka.common.serialization.*;

public class AdminCalls {
    interface Step { void run() throws Exception; }

    static String address;
    static final TopicPartition CALLS = new TopicPartition("calls", 0);
    static final Set<TopicPartition> ALL = Set.of(CALLS);
    static final OffsetAndMetadata FIVE = new OffsetAndMetadata(5);

    static void ok(String name, Step step) {
        try {
            step.run();
            System.out.println("ok " + name);
        } catch (Throwable error) {
            System.out.println("failed " + name + ": " + cause(error));
        }
    }

    static void refused(String name, Class<? extends Exception> how, Step step) {
        try {
            step.run();
            System.out.println("failed " + name + ": it is answered");
        } catch (Throwable error) {
            boolean said = how.isInstance(cause(error));
            System.out.println((said ? "ok " + name + ": refused, " : "failed " + name + ": ") + (said ? how.getSimpleName() : cause(error)));
        }
    }

    static Throwable cause(Throwable error) {
        return error instanceof ExecutionException ? error.getCause() : error;
    }

    static void check(boolean holds, String what) {
        if (!holds) throw new AssertionError(what);
    }

    static <T> T of(KafkaFuture<T> future) throws Exception {
        return future.get(60, TimeUnit.SECONDS);
    }

    static KafkaConsumer<String, String> consumer(String group, String protocol, Map<String, Object> more) {
        Map<String, Object> config = new HashMap<>(more);
        config.putAll(Map.of("bootstrap.servers", address, "group.id", group, "group.protocol", protocol,
            "auto.offset.reset", "earliest", "enable.auto.commit", false));
        return new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer());
    }

    /** Poll until something comes. */
    static void first(KafkaConsumer<String, String> consumer) {
        consumer.subscribe(List.of("calls"));
        long until = System.currentTimeMillis() + 60_000;
        do {
            check(System.currentTimeMillis() < until, "nothing came");
            consumer.poll(Duration.ofMillis(200));
        } while (consumer.assignment().isEmpty() || consumer.position(CALLS) == 0);
    }

    static KafkaProducer<String, String> producer(Map<String, Object> more) {
        Map<String, Object> config = new HashMap<>(more);
        config.put("bootstrap.servers", address);
        return new KafkaProducer<>(config, new StringSerializer(), new StringSerializer());
    }

    static void fill(Admin admin) throws Exception {
        of(admin.createTopics(List.of(new NewTopic("calls", 2, (short) 1))).all());
        try (KafkaProducer<String, String> producer = producer(Map.of())) {
            for (int n = 0; n < 10; n++) producer.send(new ProducerRecord<>("calls", 0, "k", "v" + n)).get();
        }
        for (String protocol : List.of("classic", "consumer")) {
            try (KafkaConsumer<String, String> consumer = consumer(protocol, protocol, Map.of())) {
                first(consumer);
                consumer.commitSync();
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        address = arguments[0];
        ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, "calls");
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, "1");
        ConfigResource group = new ConfigResource(ConfigResource.Type.GROUP, "consumer");
        AclBinding rule = new AclBinding(new ResourcePattern(ResourceType.TOPIC, "calls", PatternType.LITERAL),
            new AccessControlEntry("User:a", "*", AclOperation.READ, AclPermissionType.ALLOW));
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", address, "enable.metrics.push", true))) {
            fill(admin);
            topicsAndRecords(admin);
            settings(admin, topic, broker, group);
            groups(admin);
            ok("listOffsets, five ways", () -> {
                for (OffsetSpec which : List.of(OffsetSpec.earliest(), OffsetSpec.latest(), OffsetSpec.maxTimestamp(), OffsetSpec.forTimestamp(0), OffsetSpec.earliestLocal()))
                    check(of(admin.listOffsets(Map.of(CALLS, which)).all()).get(CALLS).offset() >= 0, which.toString());
            });
            try (KafkaProducer<String, String> open = producer(Map.of("transactional.id", "open"))) {
                open.initTransactions();
                open.beginTransaction();
                open.send(new ProducerRecord<>("calls", 0, "k", "open")).get();
                transactions(admin);
            }
            cluster(admin);
            rulesAndUsers(admin, rule);
            for (Uuid id : List.of(of(admin.describeTopics(List.of("made")).allTopicNames()).get("made").topicId()))
                ok("deleteTopics, by id", () -> of(admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all()));
            ok("deleteTopics", () -> of(admin.deleteTopics(List.of("calls")).all()));
        }
    }

    static void topicsAndRecords(Admin admin) {
        ok("createTopics", () -> check(!of(admin.createTopics(List.of(new NewTopic("made", Optional.empty(), Optional.empty())
            .configs(Map.of("cleanup.policy", "compact")))).topicId("made")).equals(Uuid.ZERO_UUID), "no id"));
        ok("createTopics, validate only", () -> of(admin.createTopics(List.of(new NewTopic("not", 1, (short) 1)), new CreateTopicsOptions().validateOnly(true)).all()));
        ok("listTopics", () -> check(of(admin.listTopics().names()).equals(Set.of("calls", "made")), "" + of(admin.listTopics().names())));
        ok("describeTopics", () -> check(of(admin.describeTopics(List.of("calls")).allTopicNames()).get("calls").partitions().size() == 2, "partitions"));
        ok("describeTopics, by id, with authorized operations", () -> {
            Uuid id = of(admin.describeTopics(List.of("calls")).allTopicNames()).get("calls").topicId();
            TopicDescription found = of(admin.describeTopics(TopicCollection.ofTopicIds(List.of(id)), new DescribeTopicsOptions().includeAuthorizedOperations(true)).allTopicIds()).get(id);
            check(found.name().equals("calls") && found.authorizedOperations().size() == 8, found.toString());
        });
        ok("createPartitions", () -> of(admin.createPartitions(Map.of("made", NewPartitions.increaseTo(3))).all()));
        ok("deleteRecords", () -> check(of(admin.deleteRecords(Map.of(CALLS, RecordsToDelete.beforeOffset(2))).lowWatermarks().get(CALLS)).lowWatermark() == 2, "low watermark"));
    }

    static void settings(Admin admin, ConfigResource topic, ConfigResource broker, ConfigResource group) {
        ok("describeConfigs of a topic and a broker", () -> {
            Map<ConfigResource, Config> found = of(admin.describeConfigs(List.of(topic, broker)).all());
            check(found.get(topic).entries().size() > 25 && found.get(broker).get("log.dirs") != null, found.toString());
        });
        ok("incrementalAlterConfigs of a topic", () -> {
            of(admin.incrementalAlterConfigs(Map.of(topic, List.of(new AlterConfigOp(new ConfigEntry("retention.ms", "12345"), AlterConfigOp.OpType.SET)))).all());
            check(of(admin.describeConfigs(List.of(topic)).all()).get(topic).get("retention.ms").value().equals("12345"), "not set");
            of(admin.incrementalAlterConfigs(Map.of(topic, List.of(new AlterConfigOp(new ConfigEntry("retention.ms", ""), AlterConfigOp.OpType.DELETE)))).all());
        });
        refused("incrementalAlterConfigs of a broker", InvalidRequestException.class, () ->
            of(admin.incrementalAlterConfigs(Map.of(broker, List.of(new AlterConfigOp(new ConfigEntry("log.cleaner.threads", "2"), AlterConfigOp.OpType.SET)))).all()));
        ok("describeConfigs of a group", () -> of(admin.describeConfigs(List.of(group)).all()));
        ok("listConfigResources", () -> check(of(admin.listConfigResources().all()).contains(topic), "topic"));
        ok("listClientMetricsResources", () -> of(admin.listClientMetricsResources().all()));
        ok("describeClientQuotas", () -> check(of(admin.describeClientQuotas(ClientQuotaFilter.all()).entities()).isEmpty(), "some"));
        refused("alterClientQuotas", InvalidRequestException.class, () -> of(admin.alterClientQuotas(List.of(new ClientQuotaAlteration(
            new ClientQuotaEntity(Map.of("user", "a")), List.of(new ClientQuotaAlteration.Op("producer_byte_rate", 1.0))))).all()));
    }

    static void groups(Admin admin) {
        ok("listGroups", () -> check(of(admin.listGroups().all()).size() == 2, "groups"));
        ok("listGroups, by type", () -> check(of(admin.listGroups(new ListGroupsOptions().withTypes(Set.of(GroupType.CONSUMER))).all()).size() == 1, "type"));
        ok("listConsumerGroups", () -> check(of(admin.listConsumerGroups().all()).size() == 2, "groups"));
        ok("describeConsumerGroups of both protocols", () -> check(of(admin.describeConsumerGroups(List.of("classic", "consumer"),
            new DescribeConsumerGroupsOptions().includeAuthorizedOperations(true)).all()).get("consumer").type() == GroupType.CONSUMER, "type"));
        ok("describeClassicGroups", () -> of(admin.describeClassicGroups(List.of("classic")).all()));
        ok("listConsumerGroupOffsets", () -> check(of(admin.listConsumerGroupOffsets("classic").partitionsToOffsetAndMetadata()).get(CALLS).offset() > 0, "none"));
        ok("listConsumerGroupOffsets of several groups", () -> check(of(admin.listConsumerGroupOffsets(Map.of(
            "classic", new ListConsumerGroupOffsetsSpec(), "consumer", new ListConsumerGroupOffsetsSpec())).all()).size() == 2, "groups"));
        ok("alterConsumerGroupOffsets", () -> of(admin.alterConsumerGroupOffsets("classic", Map.of(CALLS, FIVE)).all()));
        ok("deleteConsumerGroupOffsets", () -> of(admin.deleteConsumerGroupOffsets("classic", ALL).all()));
        ok("removeMembersFromConsumerGroup", () -> {
            try (KafkaConsumer<String, String> member = consumer("classic", "classic", Map.of("group.instance.id", "one"))) {
                first(member);
                of(admin.removeMembersFromConsumerGroup("classic", new RemoveMembersFromConsumerGroupOptions(Set.of(new MemberToRemove("one")))).all());
                check(of(admin.describeConsumerGroups(List.of("classic")).all()).get("classic").members().isEmpty(), "it is still there");
            }
        });
        ok("deleteConsumerGroups of both protocols", () -> of(admin.deleteConsumerGroups(List.of("classic", "consumer")).all()));
        refused("describeShareGroups", UnsupportedVersionException.class, () -> of(admin.describeShareGroups(List.of("s")).all()));
        refused("listShareGroupOffsets", UnsupportedVersionException.class, () -> of(admin.listShareGroupOffsets(Map.of("s", new ListShareGroupOffsetsSpec())).all()));
        refused("alterShareGroupOffsets", UnsupportedVersionException.class, () -> of(admin.alterShareGroupOffsets("s", Map.of(CALLS, 1L)).all()));
        refused("deleteShareGroupOffsets", UnsupportedVersionException.class, () -> of(admin.deleteShareGroupOffsets("s", Set.of("calls")).all()));
        refused("deleteShareGroups", GroupIdNotFoundException.class, () -> of(admin.deleteShareGroups(List.of("s")).all()));
        refused("describeStreamsGroups", UnsupportedVersionException.class, () -> of(admin.describeStreamsGroups(List.of("s")).all()));
        ok("listStreamsGroupOffsets", () -> of(admin.listStreamsGroupOffsets(Map.of("s", new ListStreamsGroupOffsetsSpec())).all()));
        ok("alterStreamsGroupOffsets", () -> of(admin.alterStreamsGroupOffsets("streams", Map.of(CALLS, FIVE)).all()));
        ok("deleteStreamsGroupOffsets", () -> of(admin.deleteStreamsGroupOffsets("streams", ALL).all()));
        ok("deleteStreamsGroups", () -> {
            of(admin.alterStreamsGroupOffsets("streams", Map.of(CALLS, FIVE)).all());
            of(admin.deleteStreamsGroups(List.of("streams")).all());
        });
    }

    static void transactions(Admin admin) {
        ok("listTransactions", () -> check(of(admin.listTransactions().all()).size() == 1, "one"));
        ok("describeTransactions", () -> check(of(admin.describeTransactions(List.of("open")).all()).get("open").state() == TransactionState.ONGOING, "state"));
        ok("describeProducers", () -> check(!of(admin.describeProducers(ALL).all()).get(CALLS).activeProducers().isEmpty(), "none"));
        ok("abortTransaction", () -> {
            ProducerState found = of(admin.describeProducers(ALL).all()).get(CALLS).activeProducers().stream()
                .filter(each -> each.currentTransactionStartOffset().isPresent()).findFirst().get();
            of(admin.abortTransaction(new AbortTransactionSpec(CALLS, found.producerId(), (short) found.producerEpoch(), found.coordinatorEpoch().orElse(0))).all());
        });
        ok("fenceProducers", () -> of(admin.fenceProducers(List.of("open")).all()));
        ok("forceTerminateTransaction", () -> of(admin.forceTerminateTransaction("open").result()));
    }

    static void cluster(Admin admin) {
        ok("describeCluster, with authorized operations", () -> {
            DescribeClusterResult found = admin.describeCluster(new DescribeClusterOptions().includeAuthorizedOperations(true));
            check(of(found.nodes()).size() == 1 && of(found.controller()) != null && of(found.authorizedOperations()).size() == 7, "" + of(found.authorizedOperations()));
        });
        ok("describeFeatures", () -> of(admin.describeFeatures().featureMetadata()));
        ok("describeLogDirs", () -> check(of(admin.describeLogDirs(List.of(1)).allDescriptions()).get(1).size() == 1, "dirs"));
        ok("describeReplicaLogDirs", () -> of(admin.describeReplicaLogDirs(List.of(new TopicPartitionReplica("calls", 0, 1))).all()));
        refused("alterReplicaLogDirs", UnsupportedVersionException.class, () -> of(admin.alterReplicaLogDirs(Map.of(new TopicPartitionReplica("calls", 0, 1), "/x")).all()));
        ok("listPartitionReassignments", () -> check(of(admin.listPartitionReassignments().reassignments()).isEmpty(), "some"));
        refused("alterPartitionReassignments", InvalidReplicaAssignmentException.class, () ->
            of(admin.alterPartitionReassignments(Map.of(CALLS, Optional.of(new NewPartitionReassignment(List.of(1, 2))))).all()));
        refused("electLeaders", ElectionNotNeededException.class, () -> of(admin.electLeaders(ElectionType.PREFERRED, ALL).partitions()).get(CALLS).map(why -> { throw (RuntimeException) why; }));
        refused("describeMetadataQuorum", UnsupportedVersionException.class, () -> of(admin.describeMetadataQuorum().quorumInfo()));
        refused("addRaftVoter", UnsupportedVersionException.class, () -> of(admin.addRaftVoter(2, Uuid.randomUuid(), Set.of(new RaftVoterEndpoint("C", "localhost", 1))).all()));
        refused("removeRaftVoter", UnsupportedVersionException.class, () -> of(admin.removeRaftVoter(2, Uuid.randomUuid()).all()));
        refused("unregisterBroker", UnsupportedVersionException.class, () -> of(admin.unregisterBroker(2).all()));
        refused("updateFeatures", UnsupportedVersionException.class, () -> of(admin.updateFeatures(Map.of("metadata.version", new FeatureUpdate((short) 1, FeatureUpdate.UpgradeType.UPGRADE)), new UpdateFeaturesOptions()).all()));
        ok("clientInstanceId: none, nobody takes metrics", () -> check(admin.clientInstanceId(Duration.ofSeconds(10)) == null, "there is one"));
        ok("metrics", () -> check(!admin.metrics().isEmpty(), "none"));
    }

    static void rulesAndUsers(Admin admin, AclBinding rule) {
        refused("describeAcls", SecurityDisabledException.class, () -> of(admin.describeAcls(AclBindingFilter.ANY).values()));
        refused("createAcls", SecurityDisabledException.class, () -> of(admin.createAcls(List.of(rule)).all()));
        refused("deleteAcls", SecurityDisabledException.class, () -> of(admin.deleteAcls(List.of(rule.toFilter())).all()));
        ok("describeUserScramCredentials", () -> of(admin.describeUserScramCredentials().all()));
        ok("alterUserScramCredentials", () -> of(admin.alterUserScramCredentials(List.of(
            new UserScramCredentialUpsertion("a", new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8192), "secret"))).all()));
        refused("createDelegationToken", UnsupportedVersionException.class, () -> of(admin.createDelegationToken().delegationToken()));
        refused("renewDelegationToken", UnsupportedVersionException.class, () -> of(admin.renewDelegationToken(new byte[1]).expiryTimestamp()));
        refused("expireDelegationToken", UnsupportedVersionException.class, () -> of(admin.expireDelegationToken(new byte[1]).expiryTimestamp()));
        refused("describeDelegationToken", UnsupportedVersionException.class, () -> of(admin.describeDelegationToken().delegationTokens()));
    }
}
