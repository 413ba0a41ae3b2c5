/** Shell commands with curl that make the same requests as the console. They name the key as $PORTICO_KEY. Pure. */

const JSON_TYPE = "Content-Type: application/json";
/** Characters: Linux takes 128 KiB for one argument, and a character may be three bytes. */
const LONGEST_ARGUMENT = 40_000;
/** Expanded by the shell, unlike everything else in a command. */
const AUTHORIZATION = '-H "Authorization: Bearer $PORTICO_KEY"';

/**
 * Quote a text as one word for sh and bash, so that nothing in it is expanded.
 * @param {string} text
 * @returns {string}
 */
export function shellQuote(text) {
  if (/^[A-Za-z0-9_./:@%+=,-]+$/.test(text)) return text;
  // A NUL cannot be in an argument, whatever the quotes.
  return `'${text.replaceAll("\0", "").replaceAll("'", "'\\''")}'`;
}

/**
 * @param {{method?: string, url: string, body?: unknown, stream?: boolean, headers?: string[]}} request
 * @returns {string} a command on several lines
 */
export function curlCommand({ method = "GET", url, body, stream = false, headers = [] }) {
  const first = ["curl", stream ? "-sSN" : "-sS", ...(method === "GET" || (method === "POST" && body !== undefined) ? [] : ["-X", method])];
  const lines = [`${first.join(" ")} ${shellQuote(url)}`, AUTHORIZATION, ...headers.map((header) => `-H ${shellQuote(header)}`)];
  if (body !== undefined) lines.push(`-H ${shellQuote(JSON_TYPE)}`, bodyArgument(JSON.stringify(body)));
  return lines.join(" \\\n  ");
}

function bodyArgument(json) {
  // --data-raw: a body that begins with @ is no file name.
  if (json.length < LONGEST_ARGUMENT) return `--data-raw ${shellQuote(json)}`;
  // JSON has no line ends, so the line that ends the document is not in it.
  return `--data-binary @- <<'END_OF_BODY'\n${json}\nEND_OF_BODY\n`;
}

/**
 * The requests that begin a session like this one, send a turn, follow it and so on.
 * @param {{base: string, sessionId: string, session: object | null, messages: object[], after: number}} of
 *   `base` is the origin of the daemon. `session` is its information of `GET /aap/v3/sessions/ID`. `messages` are those of the
 *   turn. `after` is the number of the event after which the stream is followed.
 * @returns {{id: string, title: string, command: string}[]}
 */
export function sessionCommands({ base, sessionId, session, messages, after }) {
  const path = `${base}/aap/v3/sessions/${encodeURIComponent(sessionId)}`;
  const agent = session?.agent?.name ?? "echo";
  const prompt = textOf(messages) || "hello";
  const model = session?.agent?.options?.model;
  const name = typeof model === "string" && model ? `${agent}/${model}` : agent;
  const turn = { stream: "delta", messages: messages.length ? messages : [{ role: "user", content: prompt }] };
  return [
    {
      id: "create",
      title: "Create a session like this one",
      command: curlCommand({ method: "POST", url: `${base}/aap/v3/sessions`, body: creation(session, agent) }),
    },
    { id: "turn", title: "Send this turn", command: curlCommand({ method: "POST", url: `${path}/turns`, body: turn, stream: true }) },
    { id: "follow", title: "Follow the session as AAP", command: curlCommand({ url: `${path}/events?after=${after}`, stream: true }) },
    {
      id: "log",
      title: "Follow the raw log",
      command: curlCommand({ url: `${path}/log?after=${after}`, stream: true, headers: ["Accept: text/event-stream"] }),
    },
    { id: "cancel", title: "Cancel the run", command: curlCommand({ method: "POST", url: `${path}/cancel` }) },
    {
      id: "execute",
      title: "Run the prompt as a task",
      command: curlCommand({ method: "POST", url: `${base}/v1/execute`, body: { driver: agent, task: prompt }, stream: true }),
    },
    {
      id: "chat",
      title: "OpenAI chat completions",
      command: curlCommand({
        method: "POST",
        url: `${base}/v1/chat/completions`,
        body: { model: name, messages: [{ role: "user", content: prompt }], stream: true },
        stream: true,
      }),
    },
    {
      id: "anthropic",
      title: "Anthropic messages",
      command: curlCommand({
        method: "POST",
        url: `${base}/v1/messages`,
        body: { model: name, max_tokens: 4096, messages: [{ role: "user", content: prompt }], stream: true },
        stream: true,
        headers: ["anthropic-version: 2023-06-01"],
      }),
    },
  ];
}

/** The body that creates a session with the same agent and settings. Secrets, which the daemon shows as ***, are left out. */
function creation(session, agent) {
  const given = session?.agent ?? {};
  const options = Object.fromEntries(Object.entries(given.options ?? {}).filter(([, value]) => value !== "***"));
  const body = { agent: { name: agent } };
  if (given.tools?.length) body.agent.tools = given.tools;
  if (Object.keys(options).length) body.agent.options = options;
  if (session?.tools?.length) body.tools = session.tools;
  return body;
}

/** The text of the user's messages. */
export function textOf(messages) {
  return messages
    .filter((message) => message.role === "user")
    .map(({ content }) =>
      typeof content === "string"
        ? content
        : (content ?? [])
            .filter((block) => block.type === "text")
            .map((block) => block.text)
            .join("\n"),
    )
    .join("\n");
}
