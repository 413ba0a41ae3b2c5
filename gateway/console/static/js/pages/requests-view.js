/** The requests of a session as commands with curl. */

import { html } from "../preact.js";
import { sessionCommands } from "./curl.js";
import { clientMessages } from "./event-log.js";
import { Spinner } from "../ui/index.js";
import { CopyAs } from "./parts.js";

export function RequestsView({ sessionId, session, turn, picker, loading }) {
  if (!turn && loading) return html`<p class="events-body"><${Spinner} label="The turns are being loaded" /></p>`;
  const messages = turn ? clientMessages(turn.event) : [];
  const commands = sessionCommands({ base: location.origin, sessionId, session, messages, after: turn ? turn.id - 1 : 0 });
  return html`${picker && html`<div class="events-tools">${picker}</div>`}<div class="events-body requests">
    <p class="page-about">The commands read the key from the variable <code>PORTICO_KEY</code>: <code>export PORTICO_KEY=$(portico key)</code>.
      Settings that are secret are left out.</p>
    ${commands.map(
      ({ id, title, command }) => html`<section key=${id} class="request" aria-label=${title}>
      <header><h2>${title}</h2><${CopyAs} text=${command} label="Copy as curl" what=${`: ${title}`} small=${true} /></header>
      <pre tabindex="0"><code data-request=${id}>${command}</code></pre>
    </section>`,
    )}
  </div>`;
}
