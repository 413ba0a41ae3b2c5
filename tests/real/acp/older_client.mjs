// The first release of the TypeScript client, which sets a model by its own method and has no config options:
//   node older_client.mjs MODULE MODEL COMMAND...
// Starts the agent, sets the model, sends "hello", and prints each text update and the stop reason.
import { spawn } from "node:child_process"
import { Readable, Writable } from "node:stream"
import { pathToFileURL } from "node:url"

const [module, modelId, program, ...args] = process.argv.slice(2)
const acp = await import(pathToFileURL(module))
const agent = spawn(program, args, { stdio: ["pipe", "pipe", "inherit"] })
const stream = acp.ndJsonStream(Writable.toWeb(agent.stdin), Readable.toWeb(agent.stdout))
const client = {
  async sessionUpdate({ update }) {
    if (update.sessionUpdate === "agent_message_chunk") console.log(`text: ${update.content.text}`)
  },
}
const connection = new acp.ClientSideConnection(() => client, stream)
await connection.initialize({ protocolVersion: acp.PROTOCOL_VERSION, clientCapabilities: {} })
const { sessionId } = await connection.newSession({ cwd: process.cwd(), mcpServers: [] })
await connection.setSessionModel({ sessionId, modelId })
const { stopReason } = await connection.prompt({ sessionId, prompt: [{ type: "text", text: "hello" }] })
console.log(`stopped: ${stopReason}`)
agent.stdin.end()
