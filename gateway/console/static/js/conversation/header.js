/** The head of a conversation: what session it is, how it is, what it has used, and what can be done with it. */

import { lazy } from "../lazy.js";
import { html, useState } from "../preact.js";
import { address, navigate, sessionPath } from "../router.js";
import { folderName, projectOf, fork, rename, stateOf, titleOf } from "../sessions.js";
import { Button, Icon, Menu, toast } from "../ui/index.js";
import { dollars, tokens, usageWords } from "./format.js";
import { percent } from "./items.js";
import { visibleText } from "./safe-text.js";

const WorktreeDialog = lazy(() => import("../worktrees/worktree-dialog.js"), "WorktreeDialog", { waiting: null });

const STATES = { running: ["Running", null], waiting: ["Waiting for you", "hand"], error: ["Error", "error"], idle: ["Idle", "check"] };

function State({ state }) {
  const [word, icon] = STATES[state] ?? STATES.idle;
  return html`<span class=${`session-state ${state}`}>${icon ? html`<${Icon} name=${icon} size=${14} />` : html`<span class="spinner" aria-hidden="true"></span>`}${word}</span>`;
}

function ContextMeter({ context }) {
  const share = Math.min(100, (100 * context.used) / context.size);
  const level = share >= 90 ? "full" : share >= 70 ? "high" : "";
  const words = `${context.used.toLocaleString("en")} of ${context.size.toLocaleString("en")} tokens of the context window are used`;
  return html`<span class=${`context-meter ${level}`} title=${words}>
    <span class="context-bar" role="meter" aria-label="Context window" aria-valuenow=${Math.round(share)} aria-valuemin="0" aria-valuemax="100" aria-valuetext=${words}>
      <span class="context-fill" ref=${(node) => node && (node.style.width = `${share}%`)}></span>
    </span>
    <span>${percent(context)}</span>
  </span>`;
}

function SessionUsage({ usage }) {
  if (!usage) return null;
  const sum = { input: usage.inputTokens ?? 0, output: usage.outputTokens ?? 0, cacheRead: usage.cacheReadTokens ?? 0, cacheWrite: usage.cacheWriteTokens ?? 0, reasoning: usage.reasoningTokens ?? 0 };
  const all = sum.input + sum.output + sum.cacheRead + sum.cacheWrite;
  if (!all) return null;
  return html`<span class="session-usage" title=${`Tokens of this session: ${usageWords(sum)}`}>${tokens(all)} tokens${usage.costUsd ? html` · <span title="By the agent's own price list">${dollars(usage.costUsd)}</span>` : null}</span>`;
}

function TitleField({ session, close }) {
  const [text, setText] = useState(titleOf(session));
  const save = async () => {
    close();
    if (text.trim() === titleOf(session)) return;
    try {
      await rename(session.sessionId, text.trim());
    } catch (error) {
      toast(`Not renamed: ${error.message}`, { kind: "error" });
    }
  };
  const keys = (event) => {
    event.stopPropagation();
    if (event.key === "Enter") save();
    else if (event.key === "Escape") close();
  };
  return html`<input class="title-field" aria-label="Title of the session" ref=${(node) => node && node !== document.activeElement && node.dataset.ready !== "1" && ((node.dataset.ready = "1"), node.select(), node.focus())} value=${text} maxlength="200" onInput=${(event) => setText(event.target.value)} onKeyDown=${keys} onBlur=${save} />`;
}

export function ConversationHeader({ session, context, model, canCancel, cancelling, onCancel, onEnd }) {
  const [renaming, setRenaming] = useState(false);
  const [changes, setChanges] = useState(false);
  const id = session.sessionId;
  const own = session["x-portico"] ?? {};
  const folder = projectOf(session);
  const forkAll = async () => {
    try {
      navigate(sessionPath(await fork(id)));
    } catch (error) {
      toast(`Not forked: ${error.message}`, { kind: "error" });
    }
  };
  const copyLink = () =>
    navigator.clipboard?.writeText(location.origin + address(sessionPath(id))).then(
      () => toast("Copied the address of this session"),
      () => toast("The browser does not allow copying", { kind: "error" }),
    );
  const items = () => [
    { label: "Rename", icon: "edit", run: () => setRenaming(true) },
    { label: "Fork the session", icon: "fork", run: forkAll },
    own.worktree ? { label: "Changes in the worktree", icon: "diff", run: () => setChanges(true) } : null,
    { label: "Event log", icon: "list", run: () => navigate(`/sessions/${encodeURIComponent(id)}/events`) },
    navigator.clipboard ? { label: "Copy address", icon: "link", run: copyLink } : null,
    { label: "Go to the end", icon: "arrow-down", run: onEnd },
  ];
  return html`<header class="pane-header conversation-header">
    ${renaming ? html`<${TitleField} session=${session} close=${() => setRenaming(false)} />` : html`<h1 class="pane-title" dir="auto" onDblClick=${() => setRenaming(true)}>${visibleText(titleOf(session))}</h1>`}
    <div class="pane-sub">
      <${State} state=${stateOf(session)} />
      <span class="session-agent" title="Agent">${visibleText(session.agent.name)}${model && model !== session.agent.name ? html` <span class="dim">${visibleText(model)}</span>` : null}</span>
      ${folder && html`<span class="session-folder" title=${visibleText(folder)}><${Icon} name="folder" size=${14} /> <bdi dir="ltr">${visibleText(folderName(folder))}</bdi></span>`}
      ${own.worktree && html`<button type="button" class="link-button session-branch" aria-label=${`Changes in the worktree, branch ${visibleText(own.worktree.branch)}`} title=${`Changes in the worktree: ${visibleText(own.worktree.path)}`} onClick=${() => setChanges(true)}><${Icon} name="fork" size=${14} /> <bdi dir="ltr">${visibleText(own.worktree.branch)}</bdi></button>`}
      <${SessionUsage} usage=${own.usage} />
      ${context && html`<${ContextMeter} context=${context} />`}
    </div>
    <div class="pane-actions">
      ${canCancel && html`<${Button} small class="cancel-turn" icon="stop" busy=${cancelling} onClick=${onCancel} title="Cancel (Esc)">Cancel</${Button}>`}
      <${Menu} label="Session" items=${items} />
    </div>
    ${changes && html`<${WorktreeDialog} sessionId=${id} onClose=${() => setChanges(false)} />`}
  </header>`;
}
