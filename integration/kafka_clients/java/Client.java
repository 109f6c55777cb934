import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Producers and consumers of Kafka's Java client, driven by tests; see programs.py for the lines
 * that it reads and prints.
 *
 * <pre>
 * Client produce SERVERS TOPIC CODEC
 * Client consume SERVERS TOPIC GROUP COUNT
 * Client numbers SERVERS TOPIC COUNT           the idempotent producer: sends 0, 1, …, COUNT - 1
 * Client transfer SERVERS SOURCE TARGET COUNT  each number of SOURCE twice to TARGET, in transactions
 * </pre>
 */
final class Client {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final Duration POLL = Duration.ofMillis(200);
  private static final int KEYS = 7;
  private static final int BATCH = 10; // records of a poll, and of a transaction

  private Client() {}

  public static void main(String[] given) throws Exception {
    String servers = given[1];
    String topic = given[2];
    switch (given[0]) {
      case "produce" -> produce(servers, topic, given[3]);
      case "consume" -> consume(servers, topic, given[3], Integer.parseInt(given[4]));
      case "numbers" -> numbers(servers, topic, Integer.parseInt(given[3]));
      case "transfer" -> transfer(servers, topic, given[3], Integer.parseInt(given[4]));
      default -> throw new IllegalArgumentException(given[0]);
    }
  }

  private static synchronized void show(JsonNode line) {
    System.out.println(line);
    System.out.flush();
  }

  private static KafkaProducer<byte[], byte[]> producer(String servers, Map<String, ?> more) {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", servers);
    settings.put("reconnect.backoff.max.ms", "500");
    settings.putAll(more);
    return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
  }

  private static KafkaConsumer<byte[], byte[]> consumer(String servers, String group) {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", servers);
    settings.put("group.id", group);
    settings.put("auto.offset.reset", "earliest");
    settings.put("enable.auto.commit", "false");
    settings.put("isolation.level", "read_committed");
    settings.put("max.poll.records", Integer.toString(BATCH));
    settings.put("session.timeout.ms", "6000");
    settings.put("heartbeat.interval.ms", "500");
    settings.put("reconnect.backoff.max.ms", "500");
    return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
  }

  private static void produce(String servers, String topic, String codec) throws Exception {
    Map<String, String> settings =
        codec.equals("default") ? Map.of() : Map.of("compression.type", codec);
    try (KafkaProducer<byte[], byte[]> producer = producer(servers, settings)) {
      BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
      for (String line = lines.readLine(); line != null; line = lines.readLine()) {
        JsonNode row = JSON.readTree(line);
        ProducerRecord<byte[], byte[]> record =
            new ProducerRecord<>(topic, bytes(row.get("key")), bytes(row.get("value")));
        for (JsonNode one : row.get("headers")) {
          record.headers().add(new RecordHeader(one.get("name").asText(), bytes(one.get("value"))));
        }
        producer.send(record, Client::endIfLost);
      }
      producer.flush();
    }
  }

  private static byte[] bytes(JsonNode node) throws IOException {
    return node.isNull() ? null : node.binaryValue();
  }

  private static void endIfLost(Object sent, Exception error) {
    if (error != null) {
      error.printStackTrace();
      Runtime.getRuntime().halt(1);
    }
  }

  private static void consume(String servers, String topic, String group, int count) {
    try (KafkaConsumer<byte[], byte[]> consumer = consumer(servers, group)) {
      consumer.subscribe(List.of(topic), new Told(consumer));
      for (int found = 0; found < count; ) {
        Map<TopicPartition, OffsetAndMetadata> read = new HashMap<>();
        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
          if (found == count) {
            break;
          }
          found++;
          show(row(record));
          read.put(
              new TopicPartition(topic, record.partition()),
              new OffsetAndMetadata(record.offset() + 1));
        }
        consumer.commitSync(read);
      }
    }
  }

  private static JsonNode row(ConsumerRecord<byte[], byte[]> record) {
    ObjectNode row = JSON.createObjectNode();
    row.put("key", record.key());
    row.put("value", record.value());
    ArrayNode headers = row.putArray("headers");
    for (Header header : record.headers()) {
      headers.addObject().put("name", header.key()).put("value", header.value());
    }
    return row;
  }

  /** Tells each assignment of a member. */
  private record Told(KafkaConsumer<?, ?> consumer) implements ConsumerRebalanceListener {
    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> more) {
      ObjectNode line = JSON.createObjectNode();
      ArrayNode partitions = line.putArray("assigned");
      consumer.assignment().forEach(one -> partitions.add(one.partition()));
      show(line);
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> fewer) {}
  }

  private static void numbers(String servers, String topic, int count) throws Exception {
    try (KafkaProducer<byte[], byte[]> producer = producer(servers, Map.of())) {
      for (int number = 0; number < count; number++) {
        byte[] key = Integer.toString(number % KEYS).getBytes();
        byte[] value = Integer.toString(number).getBytes();
        JsonNode acked = JSON.createObjectNode().put("acked", number);
        producer.send(
            new ProducerRecord<>(topic, key, value),
            (sent, error) -> {
              endIfLost(sent, error);
              show(acked);
            });
        Thread.sleep(1); // so that the test can kill the service in the middle
      }
    }
  }

  private static void transfer(String servers, String source, String target, int count) {
    Map<String, String> settings = Map.of("transactional.id", "transfers to " + target);
    try (KafkaConsumer<byte[], byte[]> consumer = consumer(servers, "transfers to " + target)) {
      consumer.subscribe(List.of(source));
      int moved = 0;
      while (moved < count) { // a producer that is fenced ends, and the next one goes on
        try (KafkaProducer<byte[], byte[]> producer = producer(servers, settings)) {
          producer.initTransactions();
          while (moved < count) {
            moved = transaction(consumer, producer, target, moved);
          }
        } catch (KafkaException error) {
          System.err.println(error);
          rewind(consumer);
          moved = committed(consumer);
        }
      }
    }
  }

  /** Moves some numbers; the count of all that are moved. */
  private static int transaction(
      KafkaConsumer<byte[], byte[]> consumer,
      KafkaProducer<byte[], byte[]> producer,
      String target,
      int moved) {
    Map<TopicPartition, OffsetAndMetadata> read = new HashMap<>();
    int more = 0;
    producer.beginTransaction();
    for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
      for (int partition = 0; partition < 2; partition++) {
        producer.send(new ProducerRecord<>(target, partition, record.key(), record.value()));
      }
      more++;
      read.put(
          new TopicPartition(record.topic(), record.partition()),
          new OffsetAndMetadata(record.offset() + 1));
    }
    try {
      producer.sendOffsetsToTransaction(read, consumer.groupMetadata());
      producer.commitTransaction();
    } catch (KafkaException error) {
      System.err.println(error);
      producer.abortTransaction(); // throws if the producer is fenced
      rewind(consumer);
      return committed(consumer);
    }
    show(JSON.createObjectNode().put("acked", moved + more));
    return moved + more;
  }

  /** Reads on from the committed offsets. */
  private static void rewind(KafkaConsumer<byte[], byte[]> consumer) {
    consumer
        .committed(consumer.assignment())
        .forEach(
            (partition, position) ->
                consumer.seek(partition, position == null ? 0 : position.offset()));
  }

  private static int committed(KafkaConsumer<byte[], byte[]> consumer) {
    return consumer.committed(consumer.assignment()).values().stream()
        .mapToInt(position -> position == null ? 0 : (int) position.offset())
        .sum();
  }
}
