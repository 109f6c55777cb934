// A producer and a consumer with KafkaJS, driven by tests; see programs.py for the lines that it reads and prints.
//
//     node client.js produce SERVERS TOPIC CODEC
//     node client.js consume SERVERS TOPIC GROUP COUNT

const readline = require("node:readline");
const { CompressionTypes, Kafka, logLevel } = require("kafkajs");

const [command, servers, topic, ...rest] = process.argv.slice(2);
const retry = { retries: 30, maxRetryTime: 1000 };
const kafka = new Kafka({ clientId: "kafkajs", brokers: [servers], logLevel: logLevel.WARN, retry });

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

async function consume(group, count) {
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

const work = command === "produce" ? produce(rest[0]) : consume(rest[0], Number(rest[1]));
work.catch((error) => {
  console.error(error);
  process.exit(1);
});
