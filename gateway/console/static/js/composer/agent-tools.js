/** The agent's own tools: off, asking before each call, or trusted. */
import { html, useState } from "../preact.js";
import { Button } from "../ui/index.js";

const LEVELS = [
  ["off", "Off"],
  ["ask", "Ask"],
  ["trust", "Trust"],
];

const levelOf = (tools, name) => {
  const found = tools.find((tool) => tool.name === name);
  return found ? (found.trust ? "trust" : "ask") : "off";
};

const withLevel = (tools, name, level) => {
  const others = tools.filter((tool) => tool.name !== name);
  return level === "off" ? others : [...others, { name, trust: level === "trust" }];
};

/** All tools of an agent, at a level. */
export const allTools = (agent, level) =>
  level === "off" ? [] : (agent?.tools ?? []).map((tool) => ({ name: tool.name, trust: level === "trust" }));

/** How many tools are on, in words: "12 tools, 3 trusted". */
export function toolsInWords(tools) {
  const trusted = tools.filter((tool) => tool.trust).length;
  return tools.length
    ? `${tools.length} ${tools.length === 1 ? "tool" : "tools"}${trusted ? `, ${trusted} trusted` : ""}`
    : "no tools";
}

/** @param {{agent: object, tools: {name: string, trust: boolean}[], onChange: (tools: object[]) => void}} props */
export function AgentTools({ agent, tools, onChange }) {
  const [query, setQuery] = useState("");
  const shown = agent.tools.filter((tool) => `${tool.name} ${tool.title ?? ""}`.toLowerCase().includes(query.toLowerCase()));
  return html`<div class="agent-tools">
    <p class="dim">
      A tool that is off is not offered to the model. Calls of a tool at “Ask” wait for your answer; trusted ones run without a
      question. The rules of the policy come first.
    </p>
    <div class="agent-tools-all" role="group" aria-label="All tools">
      <${Button} small onClick=${() => onChange(allTools(agent, "ask"))}>All ask<//>
      <${Button} small onClick=${() => onChange(allTools(agent, "trust"))}>All trusted<//>
      <${Button} small onClick=${() => onChange([])}>All off<//>
      ${agent.tools.length > 8 && html`<input type="search" class="input" aria-label="Search tools" placeholder="Search tools" value=${query} onInput=${(event) => setQuery(event.target.value)} />`}
    </div>
    <ul>
      ${shown.map(
        (tool) =>
          html`<li key=${tool.name}>
            <div class="agent-tool-name">
              <bdi>${tool.name}</bdi>${tool.title && tool.title !== tool.name && html` <span class="dim">${tool.title}</span>`}
              <p dir="auto" title=${tool.description}>${tool.description}</p>
            </div>
            <div class="levels" role="radiogroup" aria-label=${tool.name}>
              ${LEVELS.map(
                ([level, label]) =>
                  html`<label class=${`level level-${level}`}
                    ><input
                      type="radio"
                      name=${`tool-${tool.name}`}
                      checked=${levelOf(tools, tool.name) === level}
                      onChange=${() => onChange(withLevel(tools, tool.name, level))}
                    /><span>${label}</span></label
                  >`,
              )}
            </div>
          </li>`,
      )}
    </ul>
    ${!agent.tools.length && html`<p class="dim">This agent declares no tools of its own.</p>`}
  </div>`;
}
