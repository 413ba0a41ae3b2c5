/** The agents page: what the daemon knows about each agent, the agents that run, and the diagnosis. */

import { api } from "../api.js";
import { visibleText } from "../conversation/safe-text.js";
import { html, useState } from "../preact.js";
import { Link, sessionPath } from "../router.js";
import { titleOf, useSession } from "../sessions.js";
import { toast } from "../ui/index.js";
import { dateTime, formatBytes, formatNumber, formatSeconds, wholeSeconds } from "./format.js";
import { WorktreeList } from "../worktrees/worktree-list.js";
import { Nodes } from "./nodes-section.js";
import { AdministratorOnly, Command, Confirm, LoadError, Page, Status, Waiting, useAnswer, useInterval } from "./parts.js";

/** Milliseconds between two readings of the live agents. */
const INTERVAL = 3000;
const MODELS = 6;

const SUPPORT = {
  tested: ["ok", "tested version"],
  newer: ["", "newer than the tested versions"],
  older: ["warn", "older than the tested versions"],
  unsupported: ["warn", "not supported any more"],
};
/** Of checks of the diagnosis. */
const STATUS = { ok: "ok", info: "info", warning: "warn", problem: "error" };

export function AgentsPage() {
  const drivers = useAnswer("/v1/drivers");
  const [probing, setProbing] = useState(false);
  const probe = async () => {
    setProbing(true);
    await drivers.reload("/v1/drivers?refresh=true");
    setProbing(false);
  };
  const actions = html`<button type="button" class="button" disabled=${probing} onClick=${probe}>${probing ? "Probing…" : "Probe all programs"}</button>`;
  return html`<${Page} title="Agents" wide=${true} actions=${actions} about="The agents of the configuration, and the programs that were found on this machine.">
    <${Nodes} />
    <${LiveAgents} />
    <section aria-labelledby="agents-known">
      <h2 id="agents-known">Known agents</h2>
      <div aria-live="polite" class="visually-hidden">${probing ? "The programs are being probed." : ""}</div>
      <${Waiting} answer=${drivers} what="The agents" />
      ${drivers.data && html`<${Known} drivers=${drivers.data.drivers} />`}
    </section>
    <${WorktreeList} />
    <${Diagnosis} />
  <//>`;
}

/** Agents that can be used come first, then those with a problem, and last in short what is not installed. */
function Known({ drivers }) {
  const all = drivers.flatMap((driver) => driver.agents.map((agent) => ({ driver, agent, state: stateOf(agent) })));
  all.sort((one, other) => ORDER.indexOf(one.state) - ORDER.indexOf(other.state) || one.agent.name.localeCompare(other.agent.name));
  const missing = all.filter(({ state }) => state === "missing");
  return html`<div class="cards">${all.filter(({ state }) => state !== "missing").map((one) => html`<${AgentCard} key=${one.agent.name} ...${one} />`)}</div>
    ${
      missing.length > 0 &&
      html`<h3 class="missing-title">Not installed</h3>
        <ul class="missing">${missing.map(
          ({ driver, agent }) => html`<li key=${agent.name}><strong>${agent.name}</strong><span class="dim">${driver.title}</span>
            ${(agent.command ?? driver.install) && html`<${Command} command=${agent.command ?? driver.install} what=${`the command that installs ${agent.name}`} />`}</li>`,
        )}</ul>`
    }`;
}

const ORDER = ["ready", "waiting", "problem", "missing"];

function stateOf(agent) {
  if (agent.offered) return agent.probed ? "ready" : "waiting";
  return agent.installed || agent.configured ? "problem" : "missing";
}

const STATES = { ready: ["ok", "can be used"], waiting: ["info", "not probed yet"], problem: ["error", "cannot be used"] };

function AgentCard({ driver, agent, state }) {
  const [kind, word] = STATES[state];
  const [supportKind, support] = SUPPORT[agent.support] ?? ["", null];
  const command = agent.command ?? (agent.installed ? null : driver.install);
  const login = agent.logged_in === false && agent.login !== command ? agent.login : null;
  return html`<article class="card agent-card" aria-label=${agent.name}>
    <header class="card-head"><h3>${agent.name}</h3><span class="dim">${driver.title}</span><${Status} kind=${kind}>${word}<//></header>
    <dl class="facts">
      ${agent.version && html`<dt>Version</dt><dd>${agent.version} ${support && html`<span class=${`badge ${supportKind}`}>${support}</span>`}</dd>`}
      ${agent.program && html`<dt>Program</dt><dd><code class="path">${agent.program}</code></dd>`}
      <dt>Runs</dt><dd><${Place} agent=${agent} /></dd>
      ${agent.worktree && html`<dt>Worktrees</dt><dd>each session works in one of its own</dd>`}
      ${agent.logged_in !== null && html`<dt>Login</dt><dd><${Status} kind=${agent.logged_in ? "ok" : "warn"}>${agent.logged_in ? "logged in" : "not logged in"}<//></dd>`}
      ${agent.models.length > 0 && html`<dt>Models</dt><dd><${Models} models=${agent.models} /></dd>`}
      ${!agent.configured && html`<dt>Settings</dt><dd>defaults; the configuration has no entry for it</dd>`}
    </dl>
    ${agent.problem && html`<p class="agent-problem">${agent.problem}</p>`}
    ${agent.notes.length > 0 && html`<ul class="notes">${agent.notes.map((note) => html`<li>${note}</li>`)}</ul>`}
    ${command && html`<${Command} command=${command} what=${`the command for ${agent.name}`} />`}
    ${login && html`<${Command} command=${login} what=${`the login command of ${agent.name}`} />`}
  </article>`;
}

/** Where the processes of an agent run, as its `run_in` and `sandbox` say. */
function Place({ agent }) {
  if (agent.run_in === "node") return agent.sandbox === "off" ? "on this machine, without a sandbox" : "on this machine, in a sandbox";
  return html`in ${agent.run_in === "bwrap" ? "namespaces of its own" : "a container of its own"} (${agent.run_in}${agent.image && html`, <code class="path">${agent.image}</code>`})`;
}

function Models({ models }) {
  const [all, setAll] = useState(false);
  const shown = all ? models : models.slice(0, MODELS);
  return html`<span class="chips">${shown.map((model) => html`<code class="chip-text">${model}</code>`)}
    ${models.length > shown.length && html`<button type="button" class="link-button" onClick=${() => setAll(true)}>and ${models.length - shown.length} more</button>`}</span>`;
}

function LiveAgents() {
  const live = useAnswer("/v1/live-agents");
  const { data, reload } = live;
  const [stopping, setStopping] = useState(null);
  useInterval(() => reload(), INTERVAL);
  const stop = async (agent) => {
    setStopping(null);
    try {
      await api.delete(`/v1/live-agents/${encodeURIComponent(idOf(agent))}`);
      toast(`${agent.agent} has been stopped.`, { kind: "ok" });
    } catch (problem) {
      toast(`Not stopped: ${problem.message}`, { kind: "error" });
    }
    await reload();
  };
  const agents = data?.agents ?? [];
  return html`<section aria-labelledby="agents-live">
    <h2 id="agents-live">Live agents ${data && html`<span class="count">${agents.length}</span>`}</h2>
    <${Waiting} answer=${live} what="The live agents" />
    ${data && agents.length === 0 && html`<p class="page-about">No agent is running now. One is started when a session needs it.</p>`}
    ${
      agents.length > 0 &&
      html`<div class="table-scroll" tabindex="0" role="region" aria-label="Live agents"><table class="table table-cards">
      <caption class="visually-hidden">Live agents</caption>
      <thead><tr><th scope="col">Agent</th><th scope="col">Session</th><th scope="col">State</th><th scope="col" class="number">Process</th>
        <th scope="col" class="number">Memory</th><th scope="col" class="number">Processor</th><th scope="col" class="number">Age</th><th scope="col"><span class="visually-hidden">Actions</span></th></tr></thead>
      <tbody>${agents.map((agent) => html`<${LiveRow} key=${idOf(agent)} agent=${agent} onStop=${() => setStopping(agent)} />`)}</tbody></table></div>`
    }
    ${
      stopping &&
      html`<${Confirm} title=${`Stop ${stopping.agent}?`} action="Stop the agent" onCancel=${() => setStopping(null)} onConfirm=${() => stop(stopping)}>
      <p>${
        stopping.taskId
          ? "The task ends with an error."
          : stopping.state === "running"
            ? "Its run ends with an error; what it has done so far stays in the history."
            : "The session stays; its next message starts the agent again."
      } ${stopping.processes > 1 ? `All ${stopping.processes} processes are ended.` : ""}</p>
    <//>`
    }
  </section>`;
}

const idOf = (agent) => agent.sessionId ?? agent.taskId;

function LiveRow({ agent, onStop }) {
  const session = useSession(agent.sessionId);
  const owner = agent.key ? html` <span class="badge">key ${agent.key}</span>` : "";
  return html`<tr>
    <th scope="row">${agent.agent}${owner}</th>
    <td data-name="Session">${
      agent.sessionId
        ? html`<${Link} class="cut" href=${sessionPath(agent.sessionId)} dir="auto">${session ? visibleText(titleOf(session)) : agent.sessionId}<//>`
        : html`<span class="dim">a task</span>`
    }</td>
    <td data-name="State"><${LiveState} agent=${agent} /></td>
    <td data-name="Process" class="number">${agent.pid ?? "none now"}${agent.processes > 1 ? html` <span class="dim" title="processes that it has started">+${agent.processes - 1}</span>` : ""}</td>
    <td data-name="Memory" class="number">${formatBytes(agent.memoryBytes)}</td>
    <td data-name="Processor" class="number">${`${formatNumber(agent.cpuPercent)} %`}</td>
    <td data-name="Age" class="number" title=${dateTime(agent.startedAt)}>${formatSeconds(wholeSeconds(agent.startedAt))}</td>
    <td><button type="button" class="button danger small" onClick=${onStop} aria-label=${`Stop ${agent.agent}${agent.pid ? `, process ${agent.pid}` : ""}`}>Stop</button></td>
  </tr>`;
}

const LIVE = { running: ["run", "running"], waiting: ["ask", "waits for its client"], idle: ["info", "idle"] };

function LiveState({ agent }) {
  const [kind, word] = LIVE[agent.state] ?? ["info", agent.state];
  const idle = agent.state === "idle" && agent.idleSince ? ` for ${formatSeconds(wholeSeconds(agent.idleSince))}` : "";
  return html`<${Status} kind=${kind}>${word}${idle}<//>`;
}

function Diagnosis() {
  const [report, setReport] = useState(null);
  const [error, setError] = useState(null);
  const [running, setRunning] = useState(false);
  const [tried, setTried] = useState(false);
  const run = async () => {
    setRunning(true);
    setError(null);
    try {
      setReport(await api.get(`/v1/diagnosis?try=${tried}`));
    } catch (problem) {
      setError(problem);
    }
    setRunning(false);
  };
  const checks = report ? [...report.checks, ...report.agents.map((agent) => agent.check)] : [];
  const problems = checks.filter((check) => check.status === "problem").length;
  return html`<section aria-labelledby="agents-diagnosis">
    <h2 id="agents-diagnosis">Diagnosis</h2>
    <p class="page-about">What <code>portico doctor</code> checks: configuration, data directory, disk, key, daemon, sandbox, proxies and agents. It changes nothing.</p>
    <div class="toolbar">
      <button type="button" class="button" disabled=${running} onClick=${run}>${running ? "Checking…" : "Run the diagnosis"}</button>
      <label class="check"><input type="checkbox" checked=${tried} onChange=${(event) => setTried(event.target.checked)} /> Send each agent a short task (costs some tokens)</label>
    </div>
    <div aria-live="polite">
    ${error && (error.status === 403 ? html`<${AdministratorOnly} what="The diagnosis names files and settings of the daemon." />` : html`<${LoadError} error=${error} reload=${run} what="The diagnosis" />`)}
    ${
      report &&
      html`<p>${problems === 0 ? html`<${Status} kind="ok">no problem was found<//>` : html`<${Status} kind="error">${problems === 1 ? "1 problem" : `${problems} problems`}<//>`}
      ${" "}<span class="dim">Portico ${report.version}</span></p>
      <ul class="checks">${checks.map(
        (check, index) => html`<li key=${index} class=${`check-item check-${check.status}`}>
        <${Status} kind=${STATUS[check.status]}>${check.status}<//>
        <div><strong>${check.name}</strong> ${check.text}
          ${check.details?.length > 0 && html`<ul class="notes">${check.details.map((detail) => html`<li>${detail}</li>`)}</ul>`}
          ${check.command && html`<${Command} command=${check.command} what=${`the command for ${check.name}`} />`}</div>
      </li>`,
      )}</ul>`
    }
    </div>
  </section>`;
}
