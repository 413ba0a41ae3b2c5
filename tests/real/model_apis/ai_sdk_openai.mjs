// The AI SDK with `@ai-sdk/openai-compatible`. Usage: ai_sdk_openai.mjs PACKAGES CASE URL KEY MODEL.
// Prints JSON, as openai_package.py does.

import { createRequire } from "node:module";

const [packages, name, url, apiKey, id] = process.argv.slice(2);
const load = createRequire(`${packages}/package.json`);
const { generateText, isStepCount, jsonSchema, streamText, tool } = load("ai");
const { createOpenAICompatible } = load("@ai-sdk/openai-compatible");
const model = createOpenAICompatible({ name: "portico", baseURL: `${url}/v1`, apiKey, includeUsage: true })(id);
const user = (content) => ({ role: "user", content });

// A turn as a stream, then one whose steps are a call of a tool, and the answer.
async function conversation() {
  const messages = [user("[[think]] hello")];
  const first = streamText({ model, messages });
  let [text, reasoning] = ["", ""];
  for await (const part of first.fullStream) {
    if (part.type === "text-delta") text += part.text;
    if (part.type === "reasoning-delta") reasoning += part.text;
  }
  const usage = await first.usage;
  messages.push(...(await first.response).messages, user("[[weather]] and now?"));
  const calls = [];
  const get_weather = tool({
    description: "The weather.",
    inputSchema: jsonSchema({ type: "object", properties: { location: { type: "string" } } }),
    execute: async (given) => (calls.push(["get_weather", given]), "mild"),
  });
  const second = streamText({ model, messages, tools: { get_weather }, stopWhen: isStepCount(3) });
  const steps = await second.steps;
  return {
    text,
    reasoning,
    finish: [await first.finishReason],
    usage: [usage.inputTokens, usage.outputTokens, usage.totalTokens],
    asked: [steps[0].text, steps[0].finishReason],
    calls,
    answer: steps[1].text,
  };
}

// The errors that the SDK throws, and those in its stream.
async function errors() {
  const found = [];
  const other = createOpenAICompatible({ name: "portico", baseURL: `${url}/v1`, apiKey })("gpt-4o");
  for (const [given, prompt] of [[other, "hello"], [model, "fail at once"]]) {
    // By default the SDK repeats what fails with 5xx, whatever `x-should-retry` says.
    await generateText({ model: given, prompt, maxRetries: 0 }).catch((error) =>
      found.push([error.constructor.name, error.statusCode ?? null, error.message, error.data?.error?.code ?? null]),
    );
  }
  let text = "";
  for await (const part of streamText({ model, prompt: "fail later", onError: () => {} }).fullStream) {
    if (part.type === "text-delta") text += part.text;
    if (part.type === "error") found.push([text, part.error?.message ?? part.error]);
  }
  return found;
}

console.log(JSON.stringify(await { conversation, errors }[name]()));
