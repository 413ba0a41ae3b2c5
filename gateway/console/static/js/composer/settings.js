/** The settings that the next message will have: changes of options and tools, by session, until they are sent. */
import { html, useState } from "../preact.js";
import { observable } from "../observable.js";
import { mocksOf, setMocks, useMocks } from "../approvals/mocked-answers.js";
import { Dialog, Tabs } from "../ui/index.js";
import { AgentTools } from "./agent-tools.js";
import { toolsText } from "./application-tools.js";
import { HIDDEN_VALUE, OptionFields } from "./options.js";
import { ToolsEditor } from "./tools-editor.js";

/** By session id: {options: {NAME: value}, tools?: [...], appTools?: [...]}. @type {{value: Map<string, object>}} */
export const changes = observable(new Map());

const NONE = { options: {} };
export const changesOf = (sessionId, all = changes.value) => all.get(sessionId) ?? NONE;

export function setChanges(sessionId, change) {
  const all = new Map(changes.value);
  const empty = !Object.keys(change.options).length && !change.tools && !change.appTools;
  if (empty) all.delete(sessionId);
  else all.set(sessionId, change);
  changes.value = all;
}

/** An option's change, or its end where the session has that value already. */
export function changeOption(sessionId, name, value, present) {
  const known = changesOf(sessionId);
  const { [name]: _, ...others } = known.options;
  setChanges(sessionId, { ...known, options: value === present ? others : { ...others, [name]: value } });
}

/** The fields of a turn's body that change the settings; secrets that were not written anew stay as they are. */
export function settingsOf({ options, tools, appTools }) {
  const given = Object.fromEntries(Object.entries(options).filter(([, value]) => value !== HIDDEN_VALUE));
  const agent = { ...(Object.keys(given).length ? { options: given } : {}), ...(tools ? { tools } : {}) };
  return { ...(Object.keys(agent).length ? { agent } : {}), ...(appTools ? { tools: appTools } : {}) };
}

/**
 * The dialog with all options, the agent's tools and the application's tools.
 * @param {{agent: object, values: object, changed: object, tools: object[], appTools: object[], mocks: object,
 *   onOption: Function, onTools: Function, onAppTools: (found: {tools: object[], mocks: object}) => void, onClose: Function}} props
 */
export function SettingsDialog({
  agent,
  values,
  changed,
  tools,
  appTools,
  mocks,
  onOption,
  onTools,
  onAppTools,
  onClose,
  tab: first = "options",
  note,
}) {
  const [tab, setTab] = useState(first);
  const tabs = [
    { id: "options", label: "Options" },
    { id: "tools", label: "Agent's tools", count: tools.length },
    { id: "application", label: "Application's tools", count: appTools.length },
  ];
  return html`<${Dialog}
    title=${`Settings of ${agent.title ?? agent.name}`}
    onClose=${onClose}
    wide=${true}
    class="settings-dialog"
  >
    ${note && html`<p class="dim">${note}</p>`}
    <${Tabs} label="Settings" tabs=${tabs} value=${tab} onChange=${setTab}>
      ${tab === "options" && html`<${OptionFields} agent=${agent} values=${values} changes=${changed} onChange=${onOption} />`}
      ${tab === "tools" && html`<${AgentTools} agent=${agent} tools=${tools} onChange=${onTools} />`}
      ${
        tab === "application" &&
        html`<${ToolsEditor}
          text=${toolsText(appTools, mocks)}
          supported=${Boolean(agent.capabilities?.application?.tools)}
          onApply=${onAppTools}
        />`
      }
    <//>
  <//>`;
}

/** The settings of an existing session. */
export function SessionSettings({ session, agent, values, onClose, tab }) {
  useMocks();
  const id = session.sessionId;
  const change = changesOf(id);
  const present = (name) => session.agent.options?.[name] ?? agent.options.find((option) => option.name === name)?.default;
  const onAppTools = ({ tools, mocks }) => {
    setMocks(id, mocks);
    const same = JSON.stringify(tools) === JSON.stringify(session.tools ?? []);
    const { appTools: _, ...others } = changesOf(id);
    setChanges(id, same ? others : { ...others, appTools: tools });
  };
  return html`<${SettingsDialog}
    agent=${agent}
    values=${values}
    changed=${change.options}
    tools=${change.tools ?? session.agent.tools ?? []}
    appTools=${change.appTools ?? session.tools ?? []}
    mocks=${mocksOf(id)}
    note="Changes hold from the next message on."
    tab=${tab}
    onOption=${(name, value) => changeOption(id, name, value, present(name))}
    onTools=${(tools) => setChanges(id, { ...changesOf(id), tools })}
    onAppTools=${onAppTools}
    onClose=${onClose}
  />`;
}
