// The official TypeScript client, driven by a test over standard input and output, one line of JSON per message:
//   node client.mjs FOLDER_OF_PACKAGES URL KEY
// in:  {"n": 1, "method": ..., "params": ...} a request, without n a notification; {"choose": KIND} for permission requests
// out: {"n": 1, "result" | "error": ...}, {"update": ...}, {"permission": ...}, {"served": METHOD, "params": ...}, {"closed": REASON}
import { createRequire } from "node:module"
import { createInterface } from "node:readline"
import { pathToFileURL } from "node:url"

const [packages, url, key] = process.argv.slice(2)
const { resolve } = createRequire(`${packages}/`)
const load = async (name) => import(pathToFileURL(resolve(name)))
const emit = (message) => process.stdout.write(`${JSON.stringify(message)}\n`)

const acp = await load("@agentclientprotocol/sdk")
const { createHttpStream } = await load("@agentclientprotocol/sdk/experimental/http-client")
const { createWebSocketStream } = await load("@agentclientprotocol/sdk/experimental/ws-client")
const { default: WebSocket } = await load("ws")

const headers = { Authorization: `Bearer ${key}` }
const stream = url.startsWith("ws") ? createWebSocketStream(url, { WebSocket, headers }) : createHttpStream(url, { headers })
let choose = "allow_once"
const answer = ({ params }) => {
  emit({ permission: params })
  if (choose === "nothing") return new Promise(() => {})
  const { optionId } = params.options.find((option) => option.kind === choose)
  return { outcome: { outcome: "selected", optionId } }
}
// The files and terminals of an editor, with constant content.
const serve = (method, result) => [method, ({ params }) => (emit({ served: method, params }), result(params))]
const { fs, terminal } = acp.methods.client
const services = [
  serve(fs.readTextFile, ({ path }) => ({ content: `text of ${path.split("/").pop()}` })),
  serve(fs.writeTextFile, () => ({})),
  serve(terminal.create, () => ({ terminalId: "terminal-1" })),
  serve(terminal.waitForExit, () => ({ exitCode: 0, signal: null })),
  serve(terminal.output, () => ({ output: "made\n", truncated: false })),
  serve(terminal.kill, () => ({})),
  serve(terminal.release, () => ({})),
]
// The handler of updates comes first: each earlier handler delays it by a turn of the event loop, and responses do not wait for it.
const client = acp
  .client({ name: "test" })
  .onNotification(acp.methods.client.session.update, ({ params }) => emit({ update: params }))
  .onRequest(acp.methods.client.session.requestPermission, answer)
const connection = services.reduce((app, [method, handler]) => app.onRequest(method, handler), client).connect(stream)

connection.closed.then(() => emit({ closed: true }), (error) => emit({ closed: String(error) }))
const ask = async ({ n, method, params }) => {
  try {
    emit({ n, result: (await connection.agent.request(method, params)) ?? {} })
  } catch (error) {
    emit({ n, error: { code: error.code ?? 0, message: String(error.message ?? error) } })
  }
}
for await (const line of createInterface({ input: process.stdin })) {
  const message = JSON.parse(line)
  if (message.choose) choose = message.choose
  else if (message.n === undefined) await connection.agent.notify(message.method, message.params)
  else void ask(message)
}
connection.close()
