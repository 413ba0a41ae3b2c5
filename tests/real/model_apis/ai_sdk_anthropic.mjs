// Cases with the AI SDK's provider of Anthropic: node ai_sdk_anthropic.mjs FOLDER_OF_PACKAGES CASE URL KEY MODEL prints what came of it as JSON.
import { createRequire } from "node:module"
import { pathToFileURL } from "node:url"

const [packages, name, url, apiKey, model] = process.argv.slice(2)
const { resolve } = createRequire(`${packages}/`)
const load = async (name) => import(pathToFileURL(resolve(name)))
const { createAnthropic } = await load("@ai-sdk/anthropic")
const { generateText, isStepCount, streamText, tool } = await load("ai")
const { z } = await load("zod")

globalThis.AI_SDK_LOG_WARNINGS = false
const agent = createAnthropic({ baseURL: `${url}/v1`, apiKey })(model)
const calls = []
const weather = tool({
  description: "The weather of a city.",
  inputSchema: z.object({ location: z.string() }),
  execute: async ({ location }) => (calls.push(location), `sun in ${location}`),
})
const thinks = { anthropic: { thinking: { type: "enabled", budgetTokens: 1024 } } }
const failure = async (work) => {
  try {
    await work()
  } catch (error) {
    return [error.statusCode ?? null, error.message, error.isRetryable ?? null]
  }
}

const cases = {
  async chat() {
    const first = await generateText({ model: agent, prompt: "[[echo:one]]" })
    const messages = [{ role: "user", content: "[[echo:one]]" }, ...first.response.messages, { role: "user", content: "[[recall]]" }]
    const second = await generateText({ model: agent, messages })
    const [one, two] = [first, second].map(({ response }) => response.headers["x-portico-session"])
    return { texts: [first.text, second.text], same: one === two }
  },
  async stream() {
    const answer = streamText({ model: agent, prompt: "[[think]]", providerOptions: thinks })
    let text = ""
    for await (const delta of answer.textStream) text += delta
    return { text, reasoning: await answer.reasoningText, stop: await answer.finishReason, usage: (await answer.usage).outputTokens }
  },
  async tools() {
    const { steps, text } = await generateText({ model: agent, prompt: "[[weather]]", tools: { get_weather: weather }, stopWhen: isStepCount(5) })
    return { stops: steps.map((step) => step.finishReason), text, calls }
  },
  async streamed_tools() {
    const answer = streamText({ model: agent, prompt: "[[weather]]", tools: { get_weather: weather }, stopWhen: isStepCount(5) })
    let text = ""
    for await (const delta of answer.textStream) text += delta
    return { stops: (await answer.steps).map((step) => step.finishReason), text, calls }
  },
  async image() {
    const pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    const content = [{ type: "file", data: pixel, mediaType: "image/png" }, { type: "text", text: "[[image]]" }]
    return (await generateText({ model: agent, messages: [{ role: "user", content }] })).text
  },
  async errors() {
    const late = async () => {
      const answer = streamText({ model: agent, prompt: "[[late]]", onError: () => {} })
      for await (const part of answer.fullStream) if (part.type === "error") throw part.error
    }
    return {
      failed: await failure(() => generateText({ model: agent, prompt: "[[fails]]", maxRetries: 0 })),
      late: await failure(late),
    }
  },
}
console.log(JSON.stringify(await cases[name]()))
