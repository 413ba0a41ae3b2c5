// A client with the `openai` package. Usage: openai_package.mjs PACKAGES CASE URL KEY MODEL. Prints JSON, as openai_package.py does.

import { createRequire } from "node:module";

const [packages, name, url, key, model] = process.argv.slice(2);
const { default: OpenAI } = createRequire(`${packages}/package.json`)("openai");
const PIXEL =
  "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==";
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key });
const user = (content) => ({ role: "user", content });

// A turn as a stream, then one with a call of a tool that the package's helper runs.
async function conversation() {
  const messages = [user("[[think]] hello")];
  const { data, response } = await client.chat.completions
    .create({ model, messages, stream: true, stream_options: { include_usage: true } })
    .withResponse();
  const sessions = [response.headers.get("x-portico-session")];
  let [text, reasoning, usage] = ["", "", null];
  const finish = [];
  for await (const chunk of data) {
    usage = chunk.usage ?? usage;
    for (const { delta, finish_reason } of chunk.choices) {
      text += delta.content ?? "";
      reasoning += delta.reasoning_content ?? "";
      if (finish_reason) finish.push(finish_reason);
    }
  }
  messages.push({ role: "assistant", content: text }, user("[[weather]] and now?"));
  const calls = [];
  const tool = {
    type: "function",
    function: {
      name: "get_weather",
      description: "The weather.",
      parameters: { type: "object", properties: { location: { type: "string" } } },
      parse: JSON.parse,
      function: (given) => (calls.push(["get_weather", given]), "mild"),
    },
  };
  const runner = client.chat.completions.runTools({ model, messages, tools: [tool], stream: true });
  await runner.done();
  const completions = runner.allChatCompletions();
  const asked = completions[0].choices[0];
  const all = [...runner.messages, user("[[think]] again")];
  const last = await client.chat.completions
    .create({ model, messages: all, tools: [{ ...tool, function: { ...tool.function, parse: undefined, function: undefined } }] })
    .withResponse();
  sessions.push(last.response.headers.get("x-portico-session"));
  return {
    text,
    reasoning,
    finish,
    usage: [usage.prompt_tokens, usage.completion_tokens, usage.total_tokens],
    asked: [asked.message.content, asked.finish_reason],
    calls,
    answer: completions[1].choices[0].message.content,
    sessions: new Set(sessions).size,
  };
}

// The errors that the package throws: of requests, of a run that fails at once, and of one that fails in its stream.
async function errors() {
  const found = [];
  for (const fields of [{ model: "gpt-4o" }, { n: 2 }]) {
    await client.chat.completions
      .create({ model, messages: [user("hello")], ...fields })
      .catch((error) => found.push([error.constructor.name, error.status, error.code, error.param]));
  }
  await new OpenAI({ baseURL: `${url}/v1`, apiKey: "wrong" }).models
    .list()
    .catch((error) => found.push([error.constructor.name, error.status, error.code, error.param]));
  await client.chat.completions
    .create({ model, messages: [user("fail at once")] })
    .catch((error) => found.push([error.constructor.name, error.status, error.error.message]));
  let text = "";
  try {
    for await (const chunk of await client.chat.completions.create({ model, messages: [user("fail later")], stream: true })) {
      text += chunk.choices[0].delta.content ?? "";
    }
  } catch (error) {
    found.push([text, error.error.message]);
  }
  return found;
}

// The content parts of a message with an image.
async function images() {
  const parts = [{ type: "text", text: "What is it?" }, { type: "image_url", image_url: { url: PIXEL } }];
  const answer = await client.chat.completions.create({ model, messages: [user(parts)] });
  return answer.choices[0].message.content;
}

// The ids of the list, and one model by its id.
async function models() {
  const ids = [];
  for await (const found of client.models.list()) ids.push(found.id);
  return [ids, (await client.models.retrieve(model)).id];
}

// An answer that is stopped half-way.
async function stop() {
  let text = "";
  for await (const chunk of await client.chat.completions.create({ model, messages: [user("long")], stream: true })) {
    text += chunk.choices[0].delta.content ?? "";
    if (text === "half") break;
  }
  return text;
}

console.log(JSON.stringify(await { conversation, errors, images, models, stop }[name]()));
