// The official TypeScript client as it is, with a test at its standard input and output, a line of JSON each:
//   node client.mjs FOLDER_OF_PACKAGES URL KEY
// in:  {"n": 1, "method": ..., "params": ...} a request, without n a notification; {"choose": KIND} for permission requests
// out: {"n": 1, "result" | "error": ...}, {"update": ...}, {"asked": ...}, {"served": METHOD, "params": ...}, {"closed": REASON}
import { createRequire } from "node:module"
import { createInterface } from "node:readline"
import { pathToFileURL } from "node:url"

const [packages, url, key] = process.argv.slice(2)
const { resolve } = createRequire(`${packages}/`)
const load = async (name) => import(pathToFileURL(resolve(name)))
const say = (message) => process.stdout.write(`${JSON.stringify(message)}\n`)

const acp = await load("@agentclientprotocol/sdk")
const { createHttpStream } = await load("@agentclientprotocol/sdk/experimental/http-client")
const { createWebSocketStream } = await load("@agentclientprotocol/sdk/experimental/ws-client")
const { default: WebSocket } = await load("ws")

const headers = { Authorization: `Bearer ${key}` }
const stream = url.startsWith("ws") ? createWebSocketStream(url, { WebSocket, headers }) : createHttpStream(url, { headers })
let choose = "allow_once"
const answer = ({ params }) => {
  say({ asked: params })
  if (choose === "nothing") return new Promise(() => {})
  const { optionId } = params.options.find((option) => option.kind === choose)
  return { outcome: { outcome: "selected", optionId } }
}
// Files and terminals as an editor has them, always the same.
const serve = (method, result) => [method, ({ params }) => (say({ served: method, params }), result(params))]
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
// Updates first: every handler before theirs is a turn of the event loop later, and answers to requests wait for none of them.
const client = acp
  .client({ name: "test" })
  .onNotification(acp.methods.client.session.update, ({ params }) => say({ update: params }))
  .onRequest(acp.methods.client.session.requestPermission, answer)
const connection = services.reduce((app, [method, handler]) => app.onRequest(method, handler), client).connect(stream)

connection.closed.then(() => say({ closed: true }), (error) => say({ closed: String(error) }))
const ask = async ({ n, method, params }) => {
  try {
    say({ n, result: (await connection.agent.request(method, params)) ?? {} })
  } catch (error) {
    say({ n, error: { code: error.code ?? 0, message: String(error.message ?? error) } })
  }
}
for await (const line of createInterface({ input: process.stdin })) {
  const message = JSON.parse(line)
  if (message.choose) choose = message.choose
  else if (message.n === undefined) await connection.agent.notify(message.method, message.params)
  else void ask(message)
}
connection.close()
