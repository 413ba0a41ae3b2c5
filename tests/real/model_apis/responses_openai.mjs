// Uses the Responses API of a gateway with OpenAI's package for Node: `PACKAGES CASE URL KEY`. Prints JSON.
import { createRequire } from "node:module";

const [packages, name, url, key] = process.argv.slice(2);
const { default: OpenAI } = createRequire(`${packages}/`)("openai");
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key });
const weather = {
  type: "function",
  name: "weather",
  description: "The weather of a city.",
  parameters: { type: "object", properties: { city: { type: "string" } } },
  strict: false,
};

const cases = {
  async create() {
    const { data, response } = await client.responses.create({ model: "script", input: "hello" }).withResponse();
    const again = await client.responses.retrieve(data.id);
    return {
      text: data.output_text,
      types: data.output.map((item) => item.type),
      session: response.headers.get("x-portico-session"),
      again: again.output_text,
    };
  },
  async stream() {
    const stream = client.responses.stream({ model: "script", input: "hello" });
    let text = "";
    stream.on("response.output_text.delta", (event) => (text += event.delta));
    const final = await stream.finalResponse();
    return { text, final: final.output_text, status: final.status };
  },
  async tools() {
    const first = await client.responses.create({ model: "script", input: "Weather?", tools: [weather] });
    const call = first.output.find((item) => item.type === "function_call");
    const second = await client.responses.create({
      model: "script",
      tools: [weather],
      previous_response_id: first.id,
      input: [{ type: "function_call_output", call_id: call.call_id, output: `sun in ${JSON.parse(call.arguments).city}` }],
    });
    return { first: first.output_text, second: second.output_text };
  },
  async background() {
    const begun = await client.responses.create({ model: "hanging", input: "go", background: true });
    const cancelled = await client.responses.cancel(begun.id);
    return { begun: begun.status, cancelled: cancelled.status };
  },
  async errors() {
    const found = {};
    for (const model of ["gpt-5", "failing"]) {
      const error = await client.responses.create({ model, input: "x" }).catch((error) => error);
      found[model] = [error.status, error.constructor.name, error.error.message];
    }
    return found;
  },
};

console.log(JSON.stringify(await cases[name]()));
