/** The nodes of a cluster, on the agents page. A daemon that is no node has none, and no section. */

import { html } from "../preact.js";
import { account } from "../sign-in.js";
import { useObservable } from "../observable.js";
import { visibleText } from "../conversation/safe-text.js";
import { dateTime, formatNumber, formatSeconds } from "./format.js";
import { Status, useAnswer, useInterval } from "./parts.js";

/** Milliseconds between two readings, as long as a node has between two heartbeats. */
const INTERVAL = 3000;
const STATES = { ready: ["ok", "ready"], draining: ["info", "draining"], silent: ["error", "silent"] };

export function Nodes() {
  const administrator = useObservable(account)?.administrator === true;
  const { data, error, reload } = useAnswer(administrator ? "/v1/nodes" : null);
  const nodes = data?.nodes ?? [];
  useInterval(() => nodes.length > 0 && reload(), INTERVAL);
  if (nodes.length === 0) return null;
  return html`<section aria-labelledby="agents-nodes">
    <h2 id="agents-nodes">Nodes <span class="count">${nodes.length}</span></h2>
    ${error && html`<p class="agent-problem" role="alert">The nodes are not up to date: ${error.message}</p>`}
    <div class="table-scroll" tabindex="0" role="region" aria-label="Nodes"><table class="table table-cards">
      <caption class="visually-hidden">Nodes</caption>
      <thead><tr><th scope="col">Address</th><th scope="col">Node</th><th scope="col">State</th><th scope="col" class="number">Live agents</th>
        <th scope="col" class="number">Turns</th><th scope="col" class="number">Sessions</th><th scope="col">Agents</th><th scope="col">Version</th><th scope="col" class="number">Heartbeat</th></tr></thead>
      <tbody>${nodes.map((node) => html`<${NodeRow} key=${node.id} node=${node} />`)}</tbody></table></div>
  </section>`;
}

function NodeRow({ node }) {
  const [kind, word] = STATES[node.state] ?? ["info", node.state];
  return html`<tr>
    <th scope="row">${visibleText(node.address)}${node.own ? html` <span class="badge">this one</span>` : ""}${node.labels.map((label) => html` <span class="badge">${visibleText(label)}</span>`)}</th>
    <td data-name="Node"><code title=${node.id}>${node.id.slice(0, 8)}</code></td>
    <td data-name="State"><${Status} kind=${kind}>${word}<//>${node.differs.length > 0 ? html` <${Status} kind="warn">other ${node.differs.join(", ")}<//>` : ""}</td>
    <td data-name="Live agents" class="number">${formatNumber(node.liveAgents)} of ${formatNumber(node.agentSlots)}</td>
    <td data-name="Turns" class="number">${formatNumber(node.runningTurns)}</td>
    <td data-name="Sessions" class="number">${formatNumber(node.sessions)}</td>
    <td data-name="Agents">${visibleText(node.agents.join(", ")) || html`<span class="dim">none</span>`}</td>
    <td data-name="Version">${node.version}</td>
    <td data-name="Heartbeat" class="number" title=${dateTime(node.heartbeatAt)}>${`${formatSeconds(Math.round(node.heartbeatAge))} ago`}</td>
  </tr>`;
}
