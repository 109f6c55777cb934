// Programs with KafkaJS, driven by tests; see programs.py for the lines that they read and print.
//
//     node client.js produce SERVERS TOPIC CODEC
//     node client.js consume SERVERS TOPIC GROUP COUNT
//     node client.js transactions SERVERS TOPIC GROUP     three messages in each; the second one is aborted
//     node client.js administer SERVERS TOPIC GROUP       the outcome of each call: "ok", or the error's type

const readline = require("node:readline");
const {
  AclOperationTypes,
  AclPermissionTypes,
  AclResourceTypes,
  CompressionTypes,
  ConfigResourceTypes,
  Kafka,
  ResourcePatternTypes,
  logLevel,
} = require("kafkajs");

const [command, servers, topic, ...rest] = process.argv.slice(2);
const retry = { retries: 30, maxRetryTime: 1000 };
const kafka = new Kafka({ clientId: "kafkajs", brokers: [servers], logLevel: logLevel.WARN, retry });

const anyAcl = {
  resourceType: AclResourceTypes.ANY,
  resourcePatternType: ResourcePatternTypes.ANY,
  operation: AclOperationTypes.ANY,
  permissionType: AclPermissionTypes.ANY,
};

const coded = (bytes) => (bytes === null ? null : bytes.toString("base64"));
const decoded = (text) => (text === null ? null : Buffer.from(text, "base64"));
const show = (line) => process.stdout.write(JSON.stringify(line) + "\n");

async function produce(codec) {
  const producer = kafka.producer();
  await producer.connect();
  const messages = [];
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { key, value, headers } = JSON.parse(line);
    const named = {};
    for (const one of headers) (named[one.name] ??= []).push(decoded(one.value));
    messages.push({ key: decoded(key), value: decoded(value), headers: named });
  }
  const compression = codec === "gzip" ? CompressionTypes.GZIP : CompressionTypes.None;
  await producer.send({ topic, messages, ...(codec === "default" ? {} : { compression }) });
  await producer.disconnect();
}

function headersOf(message) {
  return Object.entries(message.headers).flatMap(([name, values]) =>
    [values].flat().map((value) => ({ name, value: coded(value) })),
  );
}

async function consume(group, wanted) {
  const count = Number(wanted);
  const consumer = kafka.consumer({ groupId: group, sessionTimeout: 6000, heartbeatInterval: 500, retry });
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => show({ assigned: payload.memberAssignment[topic] ?? [] }));
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  let found = 0;
  let done;
  const all = new Promise((resolve) => (done = resolve));
  await consumer.run({
    eachBatchAutoResolve: false,
    eachBatch: async ({ batch, resolveOffset, heartbeat, commitOffsetsIfNecessary, uncommittedOffsets }) => {
      for (const message of batch.messages) {
        if (found === count) break;
        found += 1;
        show({ key: coded(message.key), value: coded(message.value), headers: headersOf(message) });
        resolveOffset(message.offset);
      }
      await commitOffsetsIfNecessary(uncommittedOffsets());
      await heartbeat();
      if (found === count) done();
    },
  });
  await all;
  await consumer.disconnect();
}

async function transactions(group) {
  const producer = kafka.producer({ transactionalId: `id of ${topic}`, maxInFlightRequests: 1, idempotent: true });
  await producer.connect();
  for (const outcome of ["kept", "dropped", "kept too"]) {
    const transaction = await producer.transaction();
    const messages = [1, 2, 3].map((number) => ({ value: `${outcome} ${number}` }));
    await transaction.send({ topic, messages });
    const offset = String(outcome.length);
    await transaction.sendOffsets({ consumerGroupId: group, topics: [{ topic, partitions: [{ partition: 0, offset }] }] });
    await (outcome === "dropped" ? transaction.abort() : transaction.commit());
  }
  await producer.disconnect();
}

async function administer(group) {
  const admin = kafka.admin();
  await admin.connect();
  const made = `${topic}.made`;
  const resource = { type: ConfigResourceTypes.TOPIC, name: topic };
  const retention = [{ name: "retention.ms", value: "86400000" }];
  const calls = {
    describeCluster: () => admin.describeCluster(),
    listTopics: () => admin.listTopics(),
    fetchTopicMetadata: () => admin.fetchTopicMetadata({ topics: [topic] }),
    fetchTopicOffsets: () => admin.fetchTopicOffsets(topic),
    fetchTopicOffsetsByTimestamp: () => admin.fetchTopicOffsetsByTimestamp(topic, 1),
    describeConfigs: () => admin.describeConfigs({ includeSynonyms: false, resources: [resource] }),
    alterConfigs: () => admin.alterConfigs({ resources: [{ ...resource, configEntries: retention }] }),
    createTopics: () => admin.createTopics({ topics: [{ topic: made, numPartitions: 2 }] }),
    createPartitions: () => admin.createPartitions({ topicPartitions: [{ topic: made, count: 4 }] }),
    deleteTopics: () => admin.deleteTopics({ topics: [made] }),
    deleteTopicRecords: () => admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: "1" }] }),
    listGroups: () => admin.listGroups(),
    describeGroups: () => admin.describeGroups([group]),
    fetchOffsets: () => admin.fetchOffsets({ groupId: group, topics: [topic] }),
    setOffsets: () => admin.setOffsets({ groupId: group, topic, partitions: [{ partition: 0, offset: "0" }] }),
    resetOffsets: () => admin.resetOffsets({ groupId: group, topic, earliest: true }),
    deleteGroups: () => admin.deleteGroups([group]),
    describeAcls: () => admin.describeAcls(anyAcl),
  };
  for (const [call, work] of Object.entries(calls)) {
    const outcome = await work().then(() => "ok", (error) => error.type ?? error.name);
    show({ call, outcome });
  }
  await admin.disconnect();
}

const commands = { produce, consume, transactions, administer };
commands[command](...rest).catch((error) => {
  console.error(error);
  process.exit(1);
});
