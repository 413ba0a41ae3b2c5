// Cases with Anthropic's npm package: node anthropic_client.mjs FOLDER_OF_PACKAGES CASE URL KEY MODEL prints what came of it as JSON.
import { createRequire } from "node:module"
import { pathToFileURL } from "node:url"

const [packages, name, baseURL, apiKey, model] = process.argv.slice(2)
const { resolve } = createRequire(`${packages}/`)
const load = async (name) => import(pathToFileURL(resolve(name)))
const { default: Anthropic } = await load("@anthropic-ai/sdk")
const client = new Anthropic({ baseURL, apiKey })
const user = (content) => ({ role: "user", content })
const body = (content, fields) => ({ model, max_tokens: 1024, messages: [user(content)], ...fields })
const error = async (work) => {
  try {
    await work()
  } catch (failure) {
    const { type, message } = failure.error.error
    return [failure.constructor.name, failure.status ?? null, type, message]
  }
}
const calls = []
const weather = {
  name: "get_weather",
  description: "The weather of a city.",
  input_schema: { type: "object", properties: { location: { type: "string" } } },
  run: ({ location }) => (calls.push(location), `sun in ${location}`),
  parse: (input) => input,
}

const cases = {
  async chat() {
    const messages = []
    const sessions = []
    const texts = []
    for (const text of ["[[echo:one]]", "[[recall]]"]) {
      messages.push(user(text))
      const { data, response } = await client.messages.create({ model, max_tokens: 1024, messages }).withResponse()
      sessions.push(response.headers.get("x-portico-session"))
      messages.push({ role: "assistant", content: data.content })
      texts.push(data.content[0].text)
      var { _request_id: id, stop_reason: stop } = data
    }
    return { texts, same: sessions[0] === sessions[1], id, stop }
  },
  async stream() {
    const kinds = []
    const stream = client.messages.stream(body("[[think]]", { max_tokens: 2048, thinking: { type: "adaptive" } }))
    for await (const event of stream) kinds.push(event.type)
    const { content, stop_reason: stop, usage } = await stream.finalMessage()
    return { kinds, blocks: content.map((block) => [block.type, block[block.type]]), stop, output: usage.output_tokens }
  },
  async tools() {
    const runner = client.beta.messages.toolRunner(body("[[weather]]", { tools: [weather] }))
    const stops = []
    for await (const message of runner) stops.push(message.stop_reason)
    return { stops, text: (await runner.done()).content.at(-1).text, calls }
  },
  async streamed_tools() {
    const runner = client.beta.messages.toolRunner(body("[[weather]]", { tools: [weather], stream: true }))
    const stops = []
    for await (const stream of runner) stops.push((await stream.finalMessage()).stop_reason)
    return { stops, text: (await runner.done()).content.at(-1).text, calls }
  },
  async errors() {
    const stranger = new Anthropic({ baseURL, apiKey: "wrong" })
    return {
      key: await error(() => stranger.messages.create(body("x"))),
      model: await error(() => client.messages.create({ ...body("x"), model: "nobody" })),
      failed: await error(() => client.messages.create(body("[[fails]]"))),
      "failed stream": await error(() => client.messages.create(body("[[fails]]", { stream: true }))),
      "failed later": await error(() => client.messages.stream(body("[[late]]")).finalMessage()),
    }
  },
  async models() {
    const listed = []
    for await (const item of client.models.list()) listed.push(item.id)
    const { input_tokens: tokens } = await client.messages.countTokens({ model, messages: [user("x".repeat(400))] })
    return { listed, one: (await client.models.retrieve(listed.at(-1))).display_name, tokens }
  },
}
console.log(JSON.stringify(await cases[name]()))
