import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.ClientQuotaFilter;

/**
 * The calls of consoles such as AKHQ and Kafka UI, on a topic and a group that exist. Prints the
 * outcome of each: "ok", or the name of the exception.
 *
 * <pre>Console SERVERS TOPIC GROUP</pre>
 */
final class Console {
  private static final ObjectMapper JSON = new ObjectMapper();

  private Console() {}

  public static void main(String[] given) throws Exception {
    Map<String, Object> settings =
        Map.of(
            "bootstrap.servers", given[0], "request.timeout.ms", 10_000,
            "default.api.timeout.ms", 20_000);
    try (Admin admin = Admin.create(settings)) {
      cluster(admin);
      topics(admin, given[1]);
      groups(admin, given[1], given[2]);
      transactions(admin, given[1]);
      changes(admin, given[1], given[2]);
    }
  }

  private static void tell(String call, Callable<?> work) throws Exception {
    String outcome = "ok";
    try {
      work.call();
    } catch (ExecutionException error) {
      outcome = error.getCause().getClass().getSimpleName();
      System.err.println(call + ": " + error.getCause());
    }
    System.out.println(JSON.createObjectNode().put("call", call).put("outcome", outcome));
  }

  private static ConfigResource resource(ConfigResource.Type type, String name) {
    return new ConfigResource(type, name);
  }

  private static void cluster(Admin admin) throws Exception {
    tell(
        "describeCluster",
        () ->
            admin
                .describeCluster(new DescribeClusterOptions().includeAuthorizedOperations(true))
                .nodes()
                .get());
    String broker = admin.describeCluster().nodes().get().iterator().next().idString();
    Set<ConfigResource> brokers = Set.of(resource(ConfigResource.Type.BROKER, broker));
    tell("describeConfigs of a broker", () -> admin.describeConfigs(brokers).all().get());
    tell("describeFeatures", () -> admin.describeFeatures().featureMetadata().get());
    tell("describeAcls", () -> admin.describeAcls(AclBindingFilter.ANY).values().get());
    Set<Integer> ids = Set.of(Integer.parseInt(broker));
    tell("describeLogDirs", () -> admin.describeLogDirs(ids).allDescriptions().get());
    tell("describeMetadataQuorum", () -> admin.describeMetadataQuorum().quorumInfo().get());
    tell(
        "describeClientQuotas",
        () -> admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get());
  }

  private static void topics(Admin admin, String topic) throws Exception {
    TopicPartition partition = new TopicPartition(topic, 0);
    tell("listTopics", () -> admin.listTopics().names().get());
    tell("describeTopics", () -> admin.describeTopics(Set.of(topic)).allTopicNames().get());
    Set<ConfigResource> named = Set.of(resource(ConfigResource.Type.TOPIC, topic));
    tell("describeConfigs of a topic", () -> admin.describeConfigs(named).all().get());
    Map<String, OffsetSpec> specs =
        Map.of(
            "earliest", OffsetSpec.earliest(), "latest", OffsetSpec.latest(),
            "max timestamp", OffsetSpec.maxTimestamp(), "a time", OffsetSpec.forTimestamp(1));
    for (Map.Entry<String, OffsetSpec> spec : specs.entrySet()) {
      Map<TopicPartition, OffsetSpec> asked = Map.of(partition, spec.getValue());
      tell("listOffsets of " + spec.getKey(), () -> admin.listOffsets(asked).all().get());
    }
    tell("describeProducers", () -> admin.describeProducers(Set.of(partition)).all().get());
    tell(
        "listPartitionReassignments",
        () -> admin.listPartitionReassignments().reassignments().get());
  }

  private static void groups(Admin admin, String topic, String group) throws Exception {
    tell("listGroups", () -> admin.listGroups().all().get());
    Collection<String> named = List.of(group);
    tell("describeConsumerGroups", () -> admin.describeConsumerGroups(named).all().get());
    Map<String, ListConsumerGroupOffsetsSpec> asked =
        Map.of(group, new ListConsumerGroupOffsetsSpec());
    tell("listConsumerGroupOffsets", () -> admin.listConsumerGroupOffsets(asked).all().get());
  }

  private static void transactions(Admin admin, String topic) throws Exception {
    tell("listTransactions", () -> admin.listTransactions().all().get());
    tell("fenceProducers", () -> admin.fenceProducers(Set.of("id of " + topic)).all().get());
    tell(
        "describeTransactions",
        () -> admin.describeTransactions(Set.of("id of " + topic)).all().get());
  }

  private static void changes(Admin admin, String topic, String group) throws Exception {
    TopicPartition partition = new TopicPartition(topic, 0);
    NewTopic made = new NewTopic(topic + ".made", Optional.of(2), Optional.empty());
    tell("createTopics", () -> admin.createTopics(Set.of(made)).all().get());
    Map<String, NewPartitions> more = Map.of(made.name(), NewPartitions.increaseTo(4));
    tell("createPartitions", () -> admin.createPartitions(more).all().get());
    AlterConfigOp longer =
        new AlterConfigOp(new ConfigEntry("retention.ms", "86400000"), AlterConfigOp.OpType.SET);
    Map<ConfigResource, Collection<AlterConfigOp>> altered =
        Map.of(resource(ConfigResource.Type.TOPIC, made.name()), List.of(longer));
    tell("incrementalAlterConfigs", () -> admin.incrementalAlterConfigs(altered).all().get());
    tell("deleteTopics", () -> admin.deleteTopics(Set.of(made.name())).all().get());
    Map<TopicPartition, RecordsToDelete> first =
        Map.of(partition, RecordsToDelete.beforeOffset(1));
    tell("deleteRecords", () -> admin.deleteRecords(first).all().get());
    OffsetAndMetadata start = new OffsetAndMetadata(0);
    Map<TopicPartition, OffsetAndMetadata> moved =
        Map.of(partition, start, new TopicPartition(topic, 1), start);
    tell(
        "alterConsumerGroupOffsets",
        () -> admin.alterConsumerGroupOffsets(group, moved).all().get());
    tell(
        "deleteConsumerGroupOffsets",
        () -> admin.deleteConsumerGroupOffsets(group, Set.of(partition)).all().get());
    tell("deleteConsumerGroups", () -> admin.deleteConsumerGroups(Set.of(group)).all().get());
  }
}
