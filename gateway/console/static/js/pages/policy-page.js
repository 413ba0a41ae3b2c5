/** The policy page: the rules of each agent in their order, and what they decide about a call. */

import { api } from "../api.js";
import { html, useState } from "../preact.js";
import { Select } from "../ui/index.js";
import { AdministratorOnly, Field, LoadError, Page, Segmented, useAnswer } from "./parts.js";

const DECISIONS = {
  allow: ["✓", "allow", "runs without a question"],
  ask: ["?", "ask", "the client is asked"],
  deny: ["✗", "deny", "does not run"],
  none: ["·", "no rule", "the client's trust decides"],
};
const INPUTS = [
  ["command", "Command line"],
  ["json", "JSON input"],
];

export function PolicyPage() {
  const { data, error, reload } = useAnswer("/v1/policy");
  const [checked, setChecked] = useState(null);
  const about = html`The first rule that matches a call decides; if none does, the client's trust decides. The rules are in the configuration, in <code>[[agents.NAME.policy]]</code>.`;
  if (error?.status === 403)
    return html`<${Page} title="Policy" about=${about}><${AdministratorOnly} what="Rules name folders and commands of this machine." /><//>`;
  const agents = data?.agents ?? [];
  return html`<${Page} title="Policy" about=${about}>
    ${error && html`<${LoadError} error=${error} reload=${reload} what="The rules" />`}
    ${data && html`<${TryCall} agents=${agents} checked=${checked} setChecked=${setChecked} />`}
    ${agents.map((agent) => html`<${AgentRules} key=${agent.agent} agent=${agent} decided=${checked?.agent === agent.agent ? checked.answer : null} />`)}
  <//>`;
}

function AgentRules({ agent, decided }) {
  const rules = agent.rules ?? [];
  return html`<section aria-labelledby=${`rules-${agent.agent}`}>
    <h2 id=${`rules-${agent.agent}`}>${agent.agent} ${rules.length > 0 && html`<span class="count">${rules.length}</span>`}</h2>
    ${
      rules.length === 0
        ? html`<p class="page-about">No rules: the client's trust decides about every call.</p>`
        : html`<ol class="rules" start="0">${rules.map((rule, index) => html`<${RuleItem} key=${index} rule=${rule} index=${rule.index ?? index} decides=${decided?.rule?.index === (rule.index ?? index)} />`)}</ol>`
    }
  </section>`;
}

function RuleItem({ rule, index, decides }) {
  const conditions = Object.entries(rule.when ?? {});
  return html`<li class=${`rule ${decides ? "rule-decides" : ""}`} aria-current=${decides ? "true" : undefined}>
    <span class="rule-number">${index}</span>
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
  const [mark, word] = DECISIONS[decision] ?? ["", decision];
  return html`<span class=${`decision decision-${decision}`}><span aria-hidden="true">${mark}</span> ${word}</span>`;
}

function TryCall({ agents, checked, setChecked }) {
  const [agent, setAgent] = useState(agents.find((one) => one.rules?.length)?.agent ?? agents[0]?.agent ?? "");
  const tools = agents.find((one) => one.agent === agent)?.tools ?? [];
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
  const meaning = DECISIONS[answer.decision]?.[2] ?? "";
  const commands = answer.commands ?? [];
  return html`<div class=${`check-answer answer-${answer.decision}`}>
    <p><${Decision} decision=${answer.decision} /> <strong>${answer.rule ? `Rule ${answer.rule.index} decides` : "No rule decides"}</strong>: the call ${meaning.startsWith("the") ? `waits: ${meaning}` : meaning}.</p>
    ${answer.reason && html`<p class="rule-reason">${answer.reason}</p>`}
    ${
      commands.length > 0 &&
      html`<p class="dim">${commands.length === 1 ? "One command was found" : `${commands.length} commands were found`} in the line:</p>
      <ol class="found-commands">${commands.map((found, index) => html`<li key=${index}><code>${commandText(found)}</code>${found.decision && html` <${Decision} decision=${found.decision} />`}</li>`)}</ol>`
    }
  </div>`;
}

function commandText(found) {
  if (typeof found === "string") return found;
  return found.text ?? found.command ?? (found.words ?? []).join(" ");
}
