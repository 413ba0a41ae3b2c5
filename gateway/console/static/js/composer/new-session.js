/** The beginning of a session: its agent, folder, options and tools, and the first message. */
import { AAP, api } from "../api.js";
import { sendTurn } from "../conversation/outgoing.js";
import { setMocks } from "../approvals/mocked-answers.js";
import { html, useState } from "../preact.js";
import { observable, stored, useObservable } from "../observable.js";
import { navigate, sessionPath } from "../router.js";
import { projectOf, loadAgents, loadSession, useAgents, useSessions } from "../sessions.js";
import { Button, Empty, Icon, IconButton, Spinner } from "../ui/index.js";
import { allTools, toolsInWords } from "./agent-tools.js";
import { useDraft } from "./drafts.js";
import { FolderField } from "./folder-field.js";
import { contentOf } from "./images.js";
import { MessageBox } from "./message-box.js";
import { HIDDEN_VALUE, ProminentOptions, valuesOf } from "./options.js";
import { Picker } from "./picker.js";
import { idempotencyKey } from "./post-turn.js";
import { readLog } from "./session-log.js";
import { SettingsDialog } from "./settings.js";

const DRAFT = "new";
const FOLDERS = 8;

/** The last agent, and its settings by its name, but for secrets: {agent, byAgent: {NAME: {options, tools}}}. */
const remembered = stored("portico.newSession", { agent: "", byAgent: {} }, { ofPerson: true });
/** Settings that are not remembered: secrets and the application's tools, by agent. */
const unremembered = observable({});

export function NewSession() {
  const agents = useAgents();
  const { agent: name } = useObservable(remembered);
  const agent = agents?.find((one) => one.name === name) ?? agents?.[0];
  if (!agents) return html`<div class="page-loading"><${Spinner} /></div>`;
  if (!agent) {
    return html`<${Empty}
      icon="agents"
      title="No agent was found"
      action=${html`<${Button} onClick=${() => loadAgents()}>Look again<//>`}
    >
      Install the program of an agent, such as claude or codex, or add an agent to the configuration.
    <//>`;
  }
  return html`<${NewSessionForm} key=${agent.name} agents=${agents} agent=${agent} />`;
}

/** The settings of a new session of an agent, as the user left them last. */
function useSettings(agent) {
  const memory = useObservable(remembered).byAgent[agent.name] ?? {};
  const others = useObservable(unremembered)[agent.name] ?? {};
  const secrets = new Set(agent.options.filter((option) => option.type === "secret").map((option) => option.name));
  const options = { ...startOptions(agent), ...memory.options, ...others.options };
  const known = new Set(agent.options.map((option) => option.name));
  for (const option of Object.keys(options)) if (!known.has(option)) delete options[option];
  const remember = (part) => {
    const { byAgent } = remembered.value;
    remembered.value = { agent: agent.name, byAgent: { ...byAgent, [agent.name]: { ...byAgent[agent.name], ...part } } };
  };
  const forget = (part) => (unremembered.value = { ...unremembered.value, [agent.name]: { ...others, ...part } });
  const own = new Set(agent.tools.map((tool) => tool.name));
  return {
    options,
    values: valuesOf(agent, options),
    tools: (memory.tools ?? allTools(agent, "ask")).filter((tool) => own.has(tool.name)),
    appTools: others.appTools ?? [],
    mocks: others.mocks ?? {},
    setOption(option, value) {
      if (secrets.has(option)) return forget({ options: { ...others.options, [option]: value } });
      const byDefault = agent.options.find((one) => one.name === option)?.default;
      const { [option]: _, ...rest } = memory.options ?? {};
      remember({ options: value === byDefault && !(option in startOptions(agent)) ? rest : { ...rest, [option]: value } });
    },
    setTools: (tools) => remember({ tools }),
    setAppTools: ({ tools, mocks }) => forget({ appTools: tools, mocks }),
  };
}

/** A person writes here, so commands are commands. */
const startOptions = (agent) =>
  agent.options.some((option) => option.name === "slash_commands") ? { slash_commands: "on" } : {};

function NewSessionForm({ agents, agent }) {
  const settings = useSettings(agent);
  const sessions = useSessions();
  const [draft, setDraft] = useDraft(DRAFT);
  const [system, setSystem] = useState("");
  const [showSystem, setShowSystem] = useState(false);
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const [dialog, setDialog] = useState(null);
  const hasFolder = agent.options.some((option) => option.name === "cwd");
  const folder = settings.values.cwd ?? "";
  const recent = [...new Set(sessions.map(projectOf).filter(Boolean))].slice(0, FOLDERS);
  const empty = !draft.text.trim() && !draft.images.length;

  const start = async () => {
    if (busy) return;
    setBusy(true);
    setProblem("");
    try {
      const id = await createSession(agent, settings, system);
      setMocks(id, settings.mocks);
      const sent = draft;
      if (!empty) {
        setDraft({ text: "", images: [] });
        sendTurn(id, { messages: [{ role: "user", content: contentOf(sent.text, sent.images) }] }).catch(() => {});
      }
      await loadSession(id);
      navigate(sessionPath(id));
    } catch (error) {
      setProblem(error.message);
      setBusy(false);
    }
  };

  const commands = async () => {
    const like = sessions.find((session) => session.agent.name === agent.name);
    return like ? (await readLog(like.sessionId)).commands : [];
  };

  return html`<div class="new-session">
    <div class="new-session-box">
      <h1>New session</h1>
      <div class="new-session-where">
        <${Picker}
          label="Agent"
          icon="agents"
          value=${agent.name}
          shown=${agent.title ?? agent.name}
          options=${agents.map((one) => ({ value: one.name, label: one.title && one.title.toLowerCase() !== one.name.toLowerCase() ? `${one.title} (${one.name})` : (one.title ?? one.name), description: one.description }))}
          onChange=${(name) => (remembered.value = { ...remembered.value, agent: name })}
        />
        ${
          hasFolder &&
          html`<div class="new-session-folder">
            <${Icon} name="folder" size=${16} />
            <${FolderField}
              agent=${agent.name}
              label="Working folder"
              value=${folder}
              recent=${recent}
              onChange=${(value) => settings.setOption("cwd", value)}
            />
          </div>`
        }
      </div>
      ${problem && html`<div class="notice error composer-problem" role="alert"><${Icon} name="error" /><span dir="auto">${problem}</span></div>`}
      <${MessageBox}
        draft=${draft}
        onDraft=${setDraft}
        onSend=${() => !empty && start()}
        agent=${agent}
        commands=${commands}
        label="First message"
        placeholder=${`What should ${agent.title ?? agent.name} do?`}
        onProblems=${(problems) => setProblem(problems.join(" "))}
        autoFocus=${true}
      >
        <div class="composer-settings">
          <${ProminentOptions} agent=${agent} values=${settings.values} changes=${{}} onChange=${settings.setOption} />
          <button type="button" class="picker" title="The agent's tools" onClick=${() => setDialog("tools")}>
            <${Icon} name="tool" size=${14} /><span class="picker-value">${toolsInWords(settings.tools)}</span>
          </button>
          <${IconButton} icon="settings" label="All options and tools" onClick=${() => setDialog("options")} />
        </div>
        <div class="composer-send">
          <${Button}
            kind="primary"
            class="send"
            icon="arrow-up"
            aria-label="Start the session"
            title="Start the session"
            busy=${busy}
            disabled=${empty}
            onClick=${start}
          />
        </div>
      <//>
      <div class="new-session-more">
        <${Button} kind="plain" small aria-expanded=${String(showSystem)} onClick=${() => setShowSystem(!showSystem)}
          >System prompt<//
        >
        <${Button} kind="plain" small disabled=${busy} onClick=${start}>Start without a message<//>
      </div>
      ${
        showSystem &&
        html`<label class="new-session-system"
          ><span>System prompt, before the agent's own instructions or instead of them</span
          ><textarea
            class="input"
            rows="4"
            dir="auto"
            value=${system}
            onInput=${(event) => setSystem(event.target.value)}
          ></textarea>
        </label>`
      }
    </div>
    ${
      dialog &&
      html`<${SettingsDialog}
        agent=${agent}
        values=${settings.values}
        changed=${{}}
        tools=${settings.tools}
        appTools=${settings.appTools}
        mocks=${settings.mocks}
        tab=${dialog}
        onOption=${settings.setOption}
        onTools=${settings.setTools}
        onAppTools=${settings.setAppTools}
        onClose=${() => setDialog(null)}
      />`
    }
  </div>`;
}

/** @returns {Promise<string>} the new session's id */
async function createSession(agent, { options, tools, appTools }, system) {
  const given = Object.fromEntries(Object.entries(options).filter(([, value]) => value !== HIDDEN_VALUE));
  if (given.cwd?.length > 1) given.cwd = given.cwd.replace(/(?<!\/)\/+$/, "");
  const body = {
    agent: { name: agent.name, tools, ...(Object.keys(given).length ? { options: given } : {}) },
    ...(appTools.length ? { tools: appTools } : {}),
    ...(system.trim() ? { messages: [{ role: "system", content: system }] } : {}),
  };
  return (await api.post(`${AAP}/sessions`, body, { headers: { "Idempotency-Key": idempotencyKey() } })).sessionId;
}
