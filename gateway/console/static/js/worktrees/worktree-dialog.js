/** The changes in the git worktree of a session: files with their diffs, commit, merge and removal. */

import { AAP, api } from "../api.js";
import { DiffView } from "../conversation/diff.js";
import { changeOfGit } from "../conversation/file-changes.js";
import { visibleText } from "../conversation/safe-text.js";
import { Confirm, LoadError, Notice, Waiting, useAnswer } from "../pages/parts.js";
import { html, useEffect, useRef, useState } from "../preact.js";
import { useSession } from "../sessions.js";
import { Button, Dialog, Spinner, toast } from "../ui/index.js";

const WORDS = { added: "new", modified: "changed", deleted: "deleted", renamed: "renamed" };
const OUTCOMES = {
  up_to_date: (branch) => `${branch} has everything already.`,
  fast_forward: (branch) => `${branch} was moved forward.`,
  merge_commit: (branch) => `Merged into ${branch} with a merge commit.`,
};

/** Whether a request was refused, and not ended in the middle. */
const refused = (error) => error.status >= 400 && error.status < 500;

const counted = (count, one, many = `${one}s`) => `${count} ${count === 1 ? one : many}`;

/** @param {{sessionId: string, onClose: () => void, onRemoved?: () => void}} props */
export function WorktreeDialog({ sessionId, onClose, onRemoved }) {
  const path = `${AAP}/worktrees/${encodeURIComponent(sessionId)}`;
  const answer = useAnswer(path);
  const [busy, setBusy] = useState(null);
  const [problem, setProblem] = useState(null);
  const [removing, setRemoving] = useState(false);
  const state = answer.data;
  const own = useSession(sessionId)?.["x-portico"];
  const change = `${own?.state} ${own?.lastSeq}`;
  const known = useRef(change);
  useEffect(() => {
    // A turn has begun or ended since.
    if (known.current !== change) answer.reload();
    known.current = change;
  }, [change]);
  /** Does something with the worktree, and reads it again. What was refused is said in the dialog. */
  const act = async (name, call, done) => {
    setBusy(name);
    setProblem(null);
    try {
      done(await call());
      await answer.reload();
      return true;
    } catch (error) {
      setProblem(error);
      return false;
    } finally {
      setBusy(null);
    }
  };
  const merge = () =>
    act(
      "merge",
      () => api.post(`${path}/merge`, {}),
      ({ outcome, branch }) => toast(OUTCOMES[outcome](visibleText(branch)), { kind: "ok" }),
    );
  const readable = state && !answer.error;
  const remove = async () => {
    setRemoving(false);
    setBusy("remove");
    setProblem(null);
    try {
      // It is asked again before anything is lost that was not shown.
      const loses = readable && state.loses ? (await api.get(path)).loses : undefined;
      if (loses && loses !== state.loses) {
        await answer.reload();
        setBusy(null);
        setRemoving("again");
        return;
      }
      await api.delete(`${path}${readable && !loses ? "" : "?force=true"}`);
      toast("The worktree has been removed.", { kind: "ok" });
      onRemoved?.();
      onClose();
    } catch (error) {
      setProblem(error);
      setBusy(null);
      if (readable) answer.reload();
    }
  };
  const gone = answer.error?.status === 404;
  const blocked = busy !== null || !state || state.atWork;
  const footer = html`${!gone && html`<${Button} kind="danger" icon="trash" busy=${busy === "remove"} disabled=${busy !== null || state?.atWork} onClick=${() => setRemoving(true)}>Remove…<//>`}
    <${Button} icon="refresh" disabled=${busy !== null} onClick=${() => answer.reload()}>Refresh<//>
    ${state?.baseBranch && html`<${Button} kind="primary" icon="fork" busy=${busy === "merge"} disabled=${blocked || state.ahead === 0 || state.uncommittedCount > 0} onClick=${merge}>Merge into <bdi>${visibleText(state.baseBranch)}</bdi><//>`}`;
  return html`<${Dialog} title="Changes in the worktree" wide class="worktree" onClose=${onClose} footer=${footer}>
    <div aria-live="polite">${problem && html`<${Notice} kind="error" title=${refused(problem) ? "Nothing has changed." : "That has not worked."}>${visibleText(problem.message)}<//>`}</div>
    ${
      gone
        ? html`<p class="page-about">The worktree has been removed. The next turn of the session begins a new one.</p>`
        : html`<${Waiting} answer=${{ ...answer, error: state ? null : answer.error }} what="The changes" />`
    }
    ${state && answer.error && !gone && html`<${LoadError} error=${answer.error} reload=${answer.reload} what="The changes" />`}
    ${
      state &&
      !gone &&
      html`<${Facts} state=${state} />
      <${Files} path=${path} state=${state} />
      ${state.uncommittedCount > 0 && html`<${CommitForm} count=${state.uncommittedCount} busy=${busy === "commit"} disabled=${blocked || Boolean(state.operation)} commit=${(message) => act("commit", () => api.post(`${path}/commit`, { message }), () => toast("The changes have been committed.", { kind: "ok" }))} />`}`
    }
    ${
      removing &&
      html`<${Confirm} title="Remove the worktree?" action=${readable && !state.loses ? "Remove" : "Remove, and lose that"} onCancel=${() => setRemoving(false)} onConfirm=${remove}>
        <p>${
          !readable
            ? "What it has cannot be read, and may be lost."
            : state.loses
              ? html`${removing === "again" && "It has changed meanwhile. "}It has ${visibleText(state.loses)}. <strong>That is lost with it.</strong>`
              : "Its folder and its branch are removed. Nothing is lost."
        }</p>
      <//>`
    }
  <//>`;
}

function Facts({ state }) {
  return html`<dl class="facts">
    <dt>Branch</dt><dd><code>${visibleText(state.branch)}</code>${state.checkedOut !== state.branch && html` <span class="badge warn">${state.checkedOut ? `${visibleText(state.checkedOut)} is checked out` : "no branch is checked out"}</span>`}</dd>
    <dt>Base</dt><dd>${state.baseBranch ? html`<code>${visibleText(state.baseBranch)}</code>` : "no branch: merge by hand"}${state.baseBranch && !state.baseExists && html` <span class="badge warn">deleted</span>`},
      ${" "}${counted(state.ahead, "commit")} ahead, ${state.behind} behind</dd>
    <dt>Folder</dt><dd><code class="path">${visibleText(state.path)}</code></dd>
    ${state.operation && html`<dt>Under way</dt><dd>a ${state.operation}</dd>`}
    ${state.atWork && html`<dt>Now</dt><dd>a turn is at work in it</dd>`}
    ${!state.session && html`<dt>Session</dt><dd>deleted; the worktree was kept</dd>`}
  </dl>`;
}

function Files({ path, state }) {
  if (state.files.length === 0) return html`<p class="page-about">No file differs from the base.</p>`;
  return html`<h3 id="worktree-files">${counted(state.files.length, "file")}${state.truncated ? " of more" : ""}</h3>
    <ul class="worktree-files" aria-labelledby="worktree-files">${state.files.map((file) => html`<li key=${`${file.path} ${state.head}`}><${File} path=${path} file=${file} uncommitted=${state.uncommitted.includes(file.path)} /></li>`)}</ul>`;
}

function File({ path, file, uncommitted }) {
  const [open, setOpen] = useState(false);
  const name = visibleText(file.path);
  return html`<button type="button" class="worktree-file" aria-expanded=${String(open)} onClick=${() => setOpen(!open)}>
      <bdi class="worktree-path" dir="ltr">${file.oldPath ? `${visibleText(file.oldPath)} → ` : ""}${name}</bdi>
      <span class="dim">${WORDS[file.status]}${uncommitted ? ", not committed" : ""}</span>
      ${file.additions != null && html`<span class="diff-counts">${file.additions > 0 && html`<span class="added">+${file.additions}</span>`}${file.deletions > 0 && html`<span class="removed">−${file.deletions}</span>`}</span>`}
    </button>
    ${open && html`<${FileChanges} path=${path} file=${file} />`}`;
}

function FileChanges({ path, file }) {
  const answer = useAnswer(`${path}/diff?path=${encodeURIComponent(file.path)}`);
  if (answer.error) return html`<${LoadError} error=${answer.error} reload=${answer.reload} what="The diff" />`;
  if (!answer.data) return html`<${Spinner} label="The diff is being loaded" />`;
  return html`<${DiffView} changes=${[changeOfGit(file, answer.data)]} foldKey=${`worktree:${path}:${file.path}`} limit=${200} />`;
}

function CommitForm({ count, busy, disabled, commit }) {
  const [message, setMessage] = useState("");
  const submit = async (event) => {
    event.preventDefault();
    if (message.trim() && (await commit(message.trim()))) setMessage("");
  };
  return html`<form class="worktree-commit" onSubmit=${submit}>
    <label class="field"><span class="field-label">Message of the commit</span><input class="input" type="text" value=${message} maxlength="1000" onInput=${(event) => setMessage(event.target.value)} /></label>
    <button type="submit" class="button" disabled=${disabled || busy || !message.trim()}>${busy ? "Committing…" : `Commit ${counted(count, "file")}`}</button>
  </form>`;
}
