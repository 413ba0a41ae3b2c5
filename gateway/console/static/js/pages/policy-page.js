/** The policy page: the rules of each agent in their order, and what they decide about a call. */

import { api } from "../api.js";
import { html, useState } from "../preact.js";
import { useAgents } from "../sessions.js";
import { Icon, Select } from "../ui/index.js";
import { visible } from "./format.js";
import { AdministratorOnly, Field, Page, Segmented, Waiting, useAnswer } from "./parts.js";

const DECISIONS = {
  allow: ["check", "allow", "the call runs without a question"],
  ask: ["question", "ask", "the client is asked"],
  deny: ["close", "deny", "the call does not run"],
  none: ["dot", "no rule", "the client's trust in the tool does"],
};
const INPUTS = [
  ["command", "Command line"],
  ["json", "JSON input"],
];

export function PolicyPage() {
  const answer = useAnswer("/v1/policy");
  const { data, error } = answer;
  const [checked, setChecked] = useState(null);
  const about = html`The first rule that matches a call decides; if none does, the client's trust decides. The rules are in the configuration, in <code>[[agents.NAME.policy]]</code>.`;
  if (error?.status === 403)
    return html`<${Page} title="Policy" about=${about}><${AdministratorOnly} what="Rules name folders and commands of this machine." /><//>`;
  const agents = data?.agents ?? [];
  const ruled = agents.filter((agent) => agent.rules.length > 0);
  const bare = agents.filter((agent) => agent.rules.length === 0);
  return html`<${Page} title="Policy" about=${about}>
    <${Waiting} answer=${answer} what="The rules" />
    ${data && html`<${TryCall} agents=${agents} checked=${checked} setChecked=${setChecked} />`}
    ${ruled.map((agent) => html`<${AgentRules} key=${agent.agent} agent=${agent} decided=${checked?.agent === agent.agent ? checked.answer : null} />`)}
    ${
      bare.length > 0 &&
      html`<section aria-labelledby="rules-none"><h2 id="rules-none">Without rules</h2>
        <p class="page-about">${bare.map((agent) => agent.agent).join(", ")}: the client's trust in a tool decides about its calls.</p></section>`
    }
  <//>`;
}

function AgentRules({ agent, decided }) {
  return html`<section aria-labelledby=${`rules-${agent.agent}`}>
    <h2 id=${`rules-${agent.agent}`}>${agent.agent} <span class="count">${agent.rules.length}</span></h2>
    <ol class="rules" start="0">${agent.rules.map(
      (rule) => html`<${RuleItem} key=${rule.index} rule=${rule} decides=${decided?.rule?.index === rule.index} />`,
    )}</ol>
  </section>`;
}

function RuleItem({ rule, decides }) {
  const conditions = Object.entries(rule.when ?? {});
  return html`<li class=${`rule ${decides ? "rule-decides" : ""}`} aria-current=${decides ? "true" : undefined}>
    <span class="rule-number">${rule.index}</span>
    <${Decision} decision=${rule.decide} />
    <div class="rule-body">
      <code class="rule-tool">${rule.tool}</code>
      ${conditions.map(([name, pattern]) => html`<span class="rule-condition"><span class="dim">${name}</span> <code>${typeof pattern === "string" ? pattern : JSON.stringify(pattern)}</code></span>`)}
      ${rule.reason && html`<p class="rule-reason">${rule.reason}</p>`}
      ${decides && html`<p class="rule-hit">↑ This rule decides about the call above.</p>`}
    </div>
  </li>`;
}

function Decision({ decision }) {
  const [icon, word] = DECISIONS[decision];
  return html`<span class=${`decision decision-${decision}`}><${Icon} name=${icon} size=${14} /> ${word}</span>`;
}

function TryCall({ agents, checked, setChecked }) {
  const [agent, setAgent] = useState(agents.find((one) => one.rules.length)?.agent ?? agents[0]?.agent ?? "");
  const tools = (useAgents()?.find((one) => one.name === agent)?.tools ?? []).map((one) => one.name);
  const [tool, setTool] = useState("");
  const [mode, setMode] = useState("command");
  const [command, setCommand] = useState("");
  const [input, setInput] = useState('{\n  "path": "README.md"\n}');
  const [cwd, setCwd] = useState("");
  const [problem, setProblem] = useState(null);
  const usedTool = tool || tools.find((name) => /^(bash|shell|execute|run_shell_command)$/i.test(name)) || tools[0] || "Bash";

  const check = async (event) => {
    event.preventDefault();
    setProblem(null);
    let given;
    try {
      given = mode === "command" ? { command } : JSON.parse(input);
    } catch (error) {
      setProblem(`The input is not JSON: ${error.message}`);
      return;
    }
    try {
      const answer = await api.post("/v1/policy/check", {
        agent,
        tool: usedTool,
        input: given,
        ...(cwd.trim() ? { cwd: cwd.trim() } : {}),
      });
      setChecked({ agent, answer });
    } catch (error) {
      setChecked(null);
      setProblem(error.message);
    }
  };
  return html`<section class="card try-call" aria-labelledby="try-title">
    <h2 id="try-title">Try a call</h2>
    <form onSubmit=${check}>
      <div class="form-row">
        <${Select} label="Agent" hideLabel=${false} value=${agent} options=${agents.map((one) => one.agent)} onChange=${(name) => (setAgent(name), setTool(""), setChecked(null))} />
        <${Field} label="Tool"><input class="input" type="text" list="policy-tools" value=${tool} placeholder=${usedTool} autocomplete="off" spellcheck=${false} onInput=${(event) => setTool(event.target.value)} />
          <datalist id="policy-tools">${tools.map((name) => html`<option value=${name} />`)}</datalist><//>
        <${Field} label="Working folder" wide=${true}><input class="input" type="text" value=${cwd} placeholder="the agent's own" autocomplete="off" spellcheck=${false} onInput=${(event) => setCwd(event.target.value)} /><//>
      </div>
      <${Segmented} name="input-kind" legend="Kind of input" options=${INPUTS} value=${mode} onChange=${setMode} />
      ${
        mode === "command"
          ? html`<${Field} label="Command"><input type="text" class="input mono" value=${command} required placeholder="git status && rm -rf build" autocomplete="off" autocapitalize="off" spellcheck=${false} onInput=${(event) => setCommand(event.target.value)} /><//>`
          : html`<${Field} label="Input of the call"><textarea class="input mono" rows="5" value=${input} spellcheck=${false} onInput=${(event) => setInput(event.target.value)}></textarea><//>`
      }
      <button type="submit" class="button primary">Check</button>
    </form>
    <div aria-live="polite">
      ${problem && html`<p class="form-error" role="alert">${problem}</p>`}
      ${checked && html`<${Answer} answer=${checked.answer} />`}
    </div>
  </section>`;
}

function Answer({ answer }) {
  const { decision, rule, reason, lines, commands } = answer;
  return html`<div class=${`check-answer answer-${decision}`}>
    <p class="answer-head"><${Decision} decision=${decision} /> <strong>${rule ? `Rule ${rule.index} decides` : decision === "none" ? "No rule decides" : "The command line decides"}</strong>: ${DECISIONS[decision][2]}.</p>
    ${reason && html`<p class="rule-reason">${reason}</p>`}
    ${lines.filter((line) => !line.known).map((line) => html`<p class="rule-reason">Not every command of this line is known before it runs: <code>${visible(line.text)}</code></p>`)}
    ${lines.filter((line) => line.known && !line.plain).map((line) => html`<p class="rule-reason">No pattern allows this line, since it does more than run plain commands: <code>${visible(line.text)}</code></p>`)}
    ${
      commands.length > 0 &&
      html`<p class="dim">${commands.length === 1 ? "One command was found" : `${commands.length} commands were found`} in it; the strictest decision holds:</p>
      <ol class="found-commands">${commands.map(
        (found, index) =>
          html`<li key=${index}><${Decision} decision=${found.decision} /> <code>${visible(found.text)}</code>${found.rule !== null && html` <span class="dim">by rule ${found.rule}</span>`}</li>`,
      )}</ol>`
    }
  </div>`;
}
