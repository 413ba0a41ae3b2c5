/**
 * The text of the editor for application-side tools: a JSON list of tools as AAP has them, each with an optional mocked answer. Pure.
 *
 *   [{"name": "get_weather", "description": "…", "parameters": {…}, "answer": "21 °C", "automatic": true}]
 */

export const EXAMPLE = JSON.stringify(
  [
    {
      name: "get_weather",
      description: "The weather of a place.",
      parameters: { type: "object", properties: { place: { type: "string" } }, required: ["place"] },
      answer: "21 °C, sunny",
      automatic: false,
    },
  ],
  null,
  2,
);

/**
 * @param {string} text
 * @returns {{tools: object[], mocks: Object<string, {content: string, automatic: boolean}>}}
 * @throws {Error} with what is wrong, in words
 */
export function parseTools(text) {
  if (!text.trim()) return { tools: [], mocks: {} };
  const listed = parsed(text);
  if (!Array.isArray(listed)) throw new Error("This must be a list of tools: [ {…}, {…} ]");
  const tools = [];
  const mocks = {};
  listed.forEach((given, index) => {
    const where = `Tool ${index + 1}`;
    if (typeof given !== "object" || given === null || Array.isArray(given))
      throw new Error(`${where} must be an object with a name, a description and parameters`);
    const { answer, automatic, inputSchema, ...tool } = given;
    if (typeof tool.name !== "string" || !tool.name) throw new Error(`${where} needs a name`);
    if (tools.some((other) => other.name === tool.name)) throw new Error(`The name ${tool.name} is used twice`);
    if (typeof tool.description !== "string") throw new Error(`The tool ${tool.name} needs a description`);
    tool.parameters ??= inputSchema ?? { type: "object", properties: {} };
    if (typeof tool.parameters !== "object" || Array.isArray(tool.parameters))
      throw new Error(`The parameters of ${tool.name} must be a JSON schema`);
    tools.push(tool);
    if (answer !== undefined)
      mocks[tool.name] = { content: typeof answer === "string" ? answer : JSON.stringify(answer), automatic: automatic === true };
  });
  return { tools, mocks };
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    const at = /position (\d+)/.exec(error.message);
    const line = at ? text.slice(0, Number(at[1])).split("\n").length : null;
    throw new Error(`This is not JSON${line ? ` (line ${line})` : ""}: ${error.message.replace(/ in JSON.*| \(line.*/, "")}`);
  }
}

/** The text of the editor for a session's tools and the mocked answers of this browser. */
export function toolsText(tools, mocks) {
  if (!tools?.length) return "";
  const listed = tools.map((tool) => {
    const mock = mocks[tool.name];
    return mock ? { ...tool, answer: mock.content, automatic: mock.automatic } : tool;
  });
  return JSON.stringify(listed, null, 2);
}
