/** The options of an agent, as `/meta` declares them, and the values that a session has. */
import { html } from "../preact.js";
import { Select } from "../ui/index.js";
import { FolderField } from "./folder-field.js";
import { Picker } from "./picker.js";

/** Options that have a picker of their own beside the message. */
const PROMINENT = { model: "cpu", mode: "policy", effort: "brain" };
/** Modes that ask about nothing. */
const UNRESTRICTED = new Set(["bypassPermissions", "full-access", "danger-full-access", "yolo"]);
export const HIDDEN_VALUE = "***";

/** The value of each option: the user's change, else the session's, else the default. */
export function valuesOf(agent, given = {}, changes = {}) {
  return Object.fromEntries(
    (agent?.options ?? []).map((option) => [option.name, changes[option.name] ?? given[option.name] ?? option.default]),
  );
}

const choicesOf = (option) => option.options.map((value) => ({ value, label: value || "default" }));

/** Whether an option accepts values that it does not list: the CLIs know more names of models, and levels of effort. */
const acceptsOthers = (option) => option.name === "model" || option.name === "effort";

/** @param {{agent: object, values: object, changes: object, onChange: (name: string, value: string) => void}} props */
export function ProminentOptions({ agent, values, changes, onChange }) {
  return Object.entries(PROMINENT).map(([name, icon]) => {
    const option = agent?.options.find((one) => one.name === name);
    if (!option || option.type === "secret") return null;
    const options = option.type === "select" ? choicesOf(option) : values[name] ? [{ value: values[name] }] : [];
    return html`<${Picker}
      key=${name}
      label=${option.title ?? name}
      icon=${UNRESTRICTED.has(values[name]) ? "warning" : icon}
      value=${values[name]}
      shown=${values[name] && values[name] !== option.default ? values[name] : `${(option.title ?? name).toLowerCase()}: ${values[name] || "default"}`}
      options=${options}
      free=${option.type === "text" || acceptsOthers(option)}
      changed=${name in changes}
      onChange=${(value) => onChange(name, value)}
    />`;
  });
}

/** All options of an agent with their descriptions, as fields. */
export function OptionFields({ agent, values, changes, onChange }) {
  return html`<div class="option-fields">
    ${agent.options.map(
      (option) =>
        html`<${OptionField}
          key=${option.name}
          agent=${agent}
          option=${option}
          value=${values[option.name] ?? ""}
          changed=${option.name in changes}
          onChange=${(value) => onChange(option.name, value)}
        />`,
    )}
    ${!agent.options.length && html`<p class="dim">This agent has no options.</p>`}
  </div>`;
}

function OptionField({ agent, option, value, changed, onChange }) {
  const id = `option-${agent.name}-${option.name}`;
  return html`<div class=${`option-field${changed ? " is-changed" : ""}`}>
    <label for=${id}>${option.title ?? option.name}${changed && html` <span class="option-changed">changed</span>`}</label>
    <${OptionInput} agent=${agent} option=${option} value=${value} id=${id} onChange=${onChange} />
    ${option.description && html`<p class="option-description" id=${`${id}-about`}>${option.description}</p>`}
  </div>`;
}

function OptionInput({ agent, option, value, id, onChange }) {
  const about = option.description ? `${id}-about` : undefined;
  if (option.type === "secret") {
    const stored = value === HIDDEN_VALUE;
    return html`<input
      type="password"
      id=${id}
      class="input"
      aria-describedby=${about}
      autocomplete="off"
      value=${stored ? "" : value}
      placeholder=${stored ? "A value is stored. Write another to replace it." : "None"}
      onInput=${(event) => onChange(event.target.value || (stored ? HIDDEN_VALUE : ""))}
    />`;
  }
  if (option.name === "cwd")
    return html`<${FolderField} agent=${agent.name} id=${id} value=${value} describedBy=${about} onChange=${onChange} />`;
  if (option.type === "select" && !acceptsOthers(option)) {
    return html`<${Select}
      id=${id}
      label=${option.title ?? option.name}
      aria-describedby=${about}
      value=${value}
      options=${option.options.includes(value) ? choicesOf(option) : [{ value }, ...choicesOf(option)]}
      onChange=${onChange}
    />`;
  }
  const list = option.type === "select" ? `${id}-values` : undefined;
  return html`<input
      type="text"
      id=${id}
      class="input"
      aria-describedby=${about}
      list=${list}
      dir="auto"
      autocomplete="off"
      spellcheck=${false}
      value=${value}
      placeholder=${option.default || "default"}
      onInput=${(event) => onChange(event.target.value)}
    />
    ${list && html`<datalist id=${list}>${option.options.map((one) => html`<option value=${one}></option>`)}</datalist>`}`;
}
