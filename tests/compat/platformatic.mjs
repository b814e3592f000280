// @platformatic/kafka, a younger client of Node: `node platformatic.mjs HOST:PORT FOLDER`, where FOLDER has its node_modules.
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'

const [address, folder] = process.argv.slice(2)
const { Admin, Consumer, Producer, stringDeserializers, stringSerializers } = await import(
  pathToFileURL(createRequire(`${folder}/`).resolve('@platformatic/kafka'))
)
const base = { clientId: 'compat', bootstrapBrokers: [address] }

async function step(name, run) {
  try {
    await run()
    console.log(`ok ${name}`)
  } catch (error) {
    console.log(`failed ${name}: ${error} ${(error.errors ?? []).map(String).join('; ')}`)
  }
}

const admin = new Admin(base)
await step('create a topic', () => admin.createTopics({ topics: ['young'], partitions: 1, replicas: 1 }))
await step('produce, idempotent', async () => {
  const producer = new Producer({ ...base, serializers: stringSerializers, idempotent: true })
  await producer.send({ messages: Array.from({ length: 50 }, (_, n) => ({ topic: 'young', value: `v${n}` })) })
  await producer.close()
})
await step('consume in a group', async () => {
  const consumer = new Consumer({ ...base, groupId: 'young-group', deserializers: stringDeserializers })
  const stream = await consumer.consume({ topics: ['young'], mode: 'earliest', autocommit: true })
  const found = []
  for await (const message of stream) {
    found.push(message.value)
    if (found.length === 50) break
  }
  await consumer.close(true)
  if (found.some((value, n) => value !== `v${n}`)) throw new Error('not what was sent')
})
await step('delete a topic', () => admin.deleteTopics({ topics: ['young'] }))
await admin.close()
