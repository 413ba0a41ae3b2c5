// Uses the Responses API of a gateway with the AI SDK's provider for OpenAI: `PACKAGES CASE URL KEY`. Prints JSON.
import { createRequire } from "node:module";

const [packages, name, url, key] = process.argv.slice(2);
const require = createRequire(`${packages}/`);
const { createOpenAI } = require("@ai-sdk/openai");
const { generateText, streamText, tool, stepCountIs } = require("ai");
const { z } = require("zod");
const sent = [];
const openai = createOpenAI({
  baseURL: `${url}/v1`,
  apiKey: key,
  fetch: async (input, init) => {
    const response = await fetch(input, init);
    sent.push({ input: JSON.parse(init.body).input, session: response.headers.get("x-portico-session") });
    return response;
  },
});
const model = openai.responses("script");

const cases = {
  async generate() {
    const { text, reasoningText, usage, finishReason } = await generateText({ model, system: "Be brief.", prompt: "hello" });
    return { text, reasoningText, output: usage.outputTokens, finishReason };
  },
  async stream() {
    const result = streamText({ model, prompt: "hello", onError() {} });
    let text = "";
    for await (const part of result.textStream) text += part;
    return { text, reasoningText: await result.reasoningText, finishReason: await result.finishReason };
  },
  async tools() {
    const tools = {
      weather: tool({
        description: "The weather of a city.",
        inputSchema: z.object({ city: z.string() }),
        execute: async ({ city }) => `sun in ${city}`,
      }),
    };
    const { text, steps } = await generateText({ model, prompt: "Weather?", tools, stopWhen: stepCountIs(3) });
    return { text, steps: steps.length, sessions: new Set(sent.map((one) => one.session)).size };
  },
  async turns() {
    // It sends earlier answers by reference, since they are stored.
    const messages = [];
    const texts = [];
    for (const content of ["one", "two", "three"]) {
      messages.push({ role: "user", content });
      const { text, response } = await generateText({ model, messages });
      messages.push(...response.messages);
      texts.push(text);
    }
    const references = sent.at(-1).input.filter((item) => item.type === "item_reference").length;
    return { texts, references, sessions: new Set(sent.map((one) => one.session)).size };
  },
  async errors() {
    const failing = openai.responses("failing");
    // By default it repeats a request whose response is a 5xx twice, whatever the response's headers say.
    const error = await generateText({ model: failing, prompt: "x", maxRetries: 0 }).catch((error) => error);
    const requests = sent.length;
    const later = streamText({ model: openai.responses("failing_later"), prompt: "x", onError() {} });
    const errors = [];
    let text = "";
    for await (const part of later.stream ?? later.fullStream) {
      if (part.type === "error") errors.push(part.error.message ?? part.error.response?.error?.message ?? String(part.error));
      if (part.type === "text-delta") text += part.text;
    }
    return { message: error.message, status: error.statusCode, requests, later: errors, text };
  },
};

console.log(JSON.stringify(await cases[name]()));
