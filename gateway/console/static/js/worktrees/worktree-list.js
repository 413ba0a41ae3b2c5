/** All worktrees of the user's sessions, and those that were kept. */

import { AAP } from "../api.js";
import { visibleText } from "../conversation/safe-text.js";
import { Waiting, useAnswer } from "../pages/parts.js";
import { html, useState } from "../preact.js";
import { Link, sessionPath } from "../router.js";
import { titleOf, useSession } from "../sessions.js";
import { Button } from "../ui/index.js";
import { WorktreeDialog } from "./worktree-dialog.js";

export function WorktreeList() {
  const answer = useAnswer(`${AAP}/worktrees`);
  const [shown, setShown] = useState(null);
  const found = answer.data?.worktrees ?? [];
  if (answer.data && found.length === 0) return null;
  return html`<section aria-labelledby="worktrees">
    <h2 id="worktrees">Worktrees ${answer.data && html`<span class="count">${found.length}</span>`}</h2>
    <${Waiting} answer=${answer} what="The worktrees" />
    ${
      found.length > 0 &&
      html`<div class="table-scroll" tabindex="0" role="region" aria-label="Worktrees"><table class="table table-cards">
      <caption class="visually-hidden">Worktrees</caption>
      <thead><tr><th scope="col">Branch</th><th scope="col">Session</th><th scope="col">Repository</th><th scope="col"><span class="visually-hidden">Actions</span></th></tr></thead>
      <tbody>${found.map((one) => html`<${Row} key=${one.sessionId} worktree=${one} onShow=${() => setShown(one.sessionId)} />`)}</tbody></table></div>`
    }
    ${shown && html`<${WorktreeDialog} sessionId=${shown} onClose=${() => setShown(null)} onRemoved=${() => answer.reload()} />`}
  </section>`;
}

function Row({ worktree, onShow }) {
  const { sessionId, branch, baseBranch, repository } = worktree;
  const session = useSession(worktree.session ? sessionId : null);
  return html`<tr>
    <th scope="row"><code>${visibleText(branch)}</code></th>
    <td data-name="Session">${
      worktree.session
        ? html`<${Link} class="cut" href=${sessionPath(sessionId)} dir="auto">${session ? visibleText(titleOf(session)) : sessionId}<//>`
        : html`<span class="dim">deleted; the worktree was kept</span>`
    }</td>
    <td data-name="Repository"><code class="path">${visibleText(repository)}</code>${baseBranch && html` <span class="dim">${visibleText(baseBranch)}</span>`}</td>
    <td><${Button} small onClick=${onShow} aria-label=${`Changes in ${visibleText(branch)}`}>Changes<//></td>
  </tr>`;
}
