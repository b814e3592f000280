// kafkajs, the most used client of Node: `node kafkajs.mjs HOST:PORT FOLDER`, where FOLDER has its node_modules.
import { createRequire } from 'node:module'

const [address, folder] = process.argv.slice(2)
const { Kafka, logLevel } = createRequire(`${folder}/`)('kafkajs')
const kafka = new Kafka({ clientId: 'compat', brokers: [address], logLevel: logLevel.NOTHING })

async function step(name, run) {
  try {
    await run()
    console.log(`ok ${name}`)
  } catch (error) {
    console.log(`failed ${name}: ${error}`)
  }
}

async function readAll(topic, groupId, count) {
  const consumer = kafka.consumer({ groupId })
  const found = []
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  await new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`${found.length} of ${count} came`)), 60_000)
    consumer.run({
      eachMessage: async ({ message }) => {
        found.push(message.value.toString())
        if (found.length === count) {
          clearTimeout(timer)
          resolve()
        }
      },
    })
  })
  await consumer.disconnect()
  return found
}

const values = (first, stop) => Array.from({ length: stop - first }, (_, n) => `v${first + n}`)
const messages = (first, stop) => values(first, stop).map((value) => ({ value, partition: 0 }))
const same = (found, expected) => {
  if (JSON.stringify(found) !== JSON.stringify(expected)) throw new Error(`${found.length} records, not what was sent`)
}

const admin = kafka.admin()
await admin.connect()
await step('create a topic, with settings', () =>
  admin.createTopics({
    topics: [{ topic: 'node', numPartitions: 1, configEntries: [{ name: 'compression.type', value: 'producer' }] }],
  }),
)
await step('produce and consume in a group', async () => {
  const producer = kafka.producer()
  await producer.connect()
  await producer.send({ topic: 'node', messages: messages(0, 200) })
  await producer.disconnect()
  same(await readAll('node', 'node-group', 200), values(0, 200))
})
await step('transactions: one aborts, one commits', async () => {
  await admin.createTopics({ topics: [{ topic: 'node-exact', numPartitions: 1 }] })
  const producer = kafka.producer({ transactionalId: 'node', idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  for (const [first, commits] of [[0, false], [100, true]]) {
    const transaction = await producer.transaction()
    await transaction.send({ topic: 'node-exact', messages: messages(first, first + 50) })
    await (commits ? transaction.commit() : transaction.abort())
  }
  await producer.disconnect()
  same(await readAll('node-exact', 'node-exact-group', 50), values(100, 150))
})
await step('reassignments, none', async () => same((await admin.listPartitionReassignments({})).topics, []))
await step('delete topics', () => admin.deleteTopics({ topics: ['node', 'node-exact'] }))
await admin.disconnect()
