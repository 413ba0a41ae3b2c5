/** The queue of a session: the messages that wait for their turns, whoever has sent them. */

import { AAP, api } from "../api.js";
import { html, useEffect, useState } from "../preact.js";
import { Button, Icon, IconButton, toast } from "../ui/index.js";
import { Picture } from "./output.js";
import { visibleText } from "./safe-text.js";
import { imagesOf } from "./timeline.js";

const CANCELLED = "cancelled";

const pathOf = (sessionId, rest = "") => `${AAP}/sessions/${encodeURIComponent(sessionId)}/queue${rest}`;
const textOf = (content) => (typeof content === "string" ? content : content.filter((block) => block.type === "text").map((block) => block.text).join(""));

/**
 * The queue as it was read last, and a function that reads it again. It is read when the session says that it has changed.
 * @param {object} session a session's info
 */
export function useQueue(session) {
  const id = session.sessionId;
  const { queued = 0 } = session["x-portico"];
  const [found, setFound] = useState(null);
  const [asked, setAsked] = useState(0);
  useEffect(() => {
    if (!queued) return setFound(null);
    let current = true;
    api.get(pathOf(id)).then(
      (queue) => current && setFound(queue),
      // The next change of the session reads it again.
      () => {},
    );
    return () => (current = false);
    // Each change of the queue is a change of the session.
  }, [id, session, asked]);
  return [queued ? found : null, () => setAsked((n) => n + 1)];
}

/** @param {{session: object, queue: object|null, reread: () => void}} props what `useQueue` gives */
export function Queue({ session, queue, reread }) {
  const [editing, setEditing] = useState(null);
  const [busy, setBusy] = useState(false);
  if (!queue || !queue.messages.length) return null;
  const id = session.sessionId;
  const { stopped, messages } = queue;

  const change = async (what, request) => {
    setBusy(true);
    try {
      await request();
      setEditing(null);
    } catch (error) {
      toast(`${what}: ${error.message}`, { kind: "error" });
    }
    setBusy(false);
    reread();
  };
  const move = (at, by) => {
    const order = messages.map((one) => one.id);
    order.splice(at + by, 0, ...order.splice(at, 1));
    change("Not moved", () => api.put(pathOf(id), { order }));
  };

  return html`<section class="queue" aria-label="Queued messages">
    ${
      stopped &&
      html`<div class="notice queue-stopped" role="status">
        <${Icon} name="queue" />
        <span dir="auto"
          >${stopped === CANCELLED ? "The queue is stopped, because the run was cancelled." : `The queue is stopped: ${visibleText(stopped)}`}</span
        >
        <${Button} small icon="play" busy=${busy} onClick=${() => change("The queue does not go on", () => api.post(pathOf(id, "/continue")))}>Go on<//>
      </div>`
    }
    ${messages.map((message, at) => {
      const text = textOf(message.message.content);
      const word = message.begins ? "Sending…" : stopped && message.stored ? "Queued: waits until you go on" : "Queued: sent when this turn is over";
      const fixed = busy || message.begins;
      if (editing === message.id)
        return html`<${Edited} key=${message.id} message=${message.message} busy=${busy} onCancel=${() => setEditing(null)}
          onSave=${(edited) => change("Not changed", () => api.patch(pathOf(id, `/${message.id}`), { message: edited }))} />`;
      return html`<article class="talk-prompt outgoing queued" key=${message.id} aria-label=${`Queued message ${at + 1} of ${messages.length}`}>
        <div class="prompt-text" dir="auto">${visibleText(text.slice(0, 4000))}</div>
        ${imagesOf(message.message.content).map((url, n) => html`<${Picture} key=${n} url=${url} alt=${`Image ${n + 1} of the message`} />`)}
        <p class="prompt-note"><${Icon} name="queue" size=${14} /> ${word}${message.stored ? "" : ", by a client that waits for its answer"}</p>
        <div class="edit-actions">
          <${IconButton} icon="arrow-up" label="Earlier" disabled=${fixed || at === 0 || messages[at - 1].begins} onClick=${() => move(at, -1)} />
          <${IconButton} icon="arrow-down" label="Later" disabled=${fixed || at === messages.length - 1} onClick=${() => move(at, 1)} />
          ${message.stored && html`<${Button} small icon="edit" disabled=${fixed} onClick=${() => setEditing(message.id)}>Edit</${Button}>`}
          <${Button} small icon="close" disabled=${fixed} onClick=${() => change("Not removed", () => api.delete(pathOf(id, `/${message.id}`)))}>Remove</${Button}>
        </div>
      </article>`;
    })}
  </section>`;
}

/** A queued message while its text is changed. Its images stay. */
function Edited({ message, busy, onSave, onCancel }) {
  const [text, setText] = useState(textOf(message.content));
  const images = typeof message.content === "string" ? [] : message.content.filter((block) => block.type !== "text");
  const empty = !text.trim() && !images.length;
  const save = () => onSave({ role: "user", content: images.length ? [...(text.trim() ? [{ type: "text", text }] : []), ...images] : text });
  return html`<div class="talk-prompt editing" role="group" aria-label="Edit the queued message">
    <textarea
      aria-label="Queued message"
      dir="auto"
      rows="3"
      value=${text}
      autofocus
      onInput=${(event) => setText(event.target.value)}
      onKeyDown=${(event) => {
        if (event.key !== "Escape") return;
        event.stopPropagation();
        onCancel();
      }}
    ></textarea>
    <div class="edit-actions">
      <${Button} small onClick=${onCancel}>Cancel<//>
      <${Button} small kind="primary" busy=${busy} disabled=${empty} onClick=${save}>Save<//>
    </div>
  </div>`;
}
