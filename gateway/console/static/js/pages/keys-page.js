/** The keys page: keys of clients, which can be added and removed. A key is shown once, when it is made. */

import { api } from "../api.js";
import { html, useEffect, useRef, useState } from "../preact.js";
import { toast } from "../ui/index.js";
import { dateTime, formatSeconds, wholeSeconds } from "./format.js";
import { AdministratorOnly, Confirm, CopyAs, Field, Page, Waiting, useAnswer } from "./parts.js";

export function KeysPage() {
  const answer = useAnswer("/v1/keys");
  const { data, error, reload } = answer;
  const [name, setName] = useState("");
  const [made, setMade] = useState(null);
  const [problem, setProblem] = useState(null);
  const [removing, setRemoving] = useState(null);
  const [busy, setBusy] = useState(false);

  const add = async (event) => {
    event.preventDefault();
    setBusy(true);
    setProblem(null);
    try {
      setMade(await api.post("/v1/keys", { name: name.trim() }));
      setName("");
    } catch (failed) {
      setProblem(failed.message);
    }
    setBusy(false);
    await reload();
  };
  const remove = async (key) => {
    setRemoving(null);
    try {
      await api.delete(`/v1/keys/${encodeURIComponent(key)}`);
      if (made?.name === key) setMade(null);
      toast(`The key ${key} has been removed.`);
    } catch (failed) {
      toast(`Not removed: ${failed.message}`, { kind: "error" });
    }
    await reload();
  };

  const about = "A client with a key of its own sees its own sessions only, and its key can be removed without a change for the others.";
  if (error?.status === 403)
    return html`<${Page} title="Keys" about=${about}><${AdministratorOnly} what="Keys are made and removed by the administrator." /><//>`;
  const keys = data?.keys ?? [];
  return html`<${Page} title="Keys" about=${about}>
    <${Waiting} answer=${answer} what="The keys" />
    <form class="toolbar" onSubmit=${add}>
      <${Field} label="Name of the client"><input class="input" type="text" value=${name} required maxlength="64" placeholder="phone" autocomplete="off" spellcheck=${false} aria-describedby=${problem ? "key-problem" : undefined}
          aria-invalid=${problem !== null} onInput=${(event) => setName(event.target.value)} /><//>
      <button type="submit" class="button primary" disabled=${busy || !name.trim()}>Add a key</button>
    </form>
    ${problem && html`<p class="form-error" id="key-problem" role="alert">${problem}</p>`}
    ${made && html`<${NewKey} made=${made} onClose=${() => setMade(null)} />`}
    ${data && keys.length === 0 && html`<p class="page-about">There are no named keys. The default key, which <code>portico key</code> prints, is the administrator's.</p>`}
    ${
      keys.length > 0 &&
      html`<div class="table-scroll" tabindex="0" role="region" aria-label="Named keys"><table class="table table-cards">
      <caption class="visually-hidden">Named keys</caption>
      <thead><tr><th scope="col">Name</th><th scope="col">Made</th><th scope="col">Last use</th><th scope="col"><span class="visually-hidden">Actions</span></th></tr></thead>
      <tbody>${keys.map(
        (key) => html`<tr key=${key.name}>
        <th scope="row">${key.name}</th>
        <td data-name="Made">${dateTime(key.createdAt)}</td>
        <td data-name="Last use" title=${dateTime(key.lastUsedAt)}>${key.lastUsedAt ? `${formatSeconds(wholeSeconds(key.lastUsedAt))} ago` : "never"}</td>
        <td><button type="button" class="button danger" onClick=${() => setRemoving(key.name)} aria-label=${`Remove the key ${key.name}`}>Remove</button></td>
      </tr>`,
      )}</tbody></table></div>`
    }
    ${
      removing &&
      html`<${Confirm} title=${`Remove the key ${removing}?`} action="Remove the key" onCancel=${() => setRemoving(null)} onConfirm=${() => remove(removing)}>
      <p>Its requests are refused from now on, and its open streams end. Runs that it has begun go on. Its sessions stay, and belong to a key of the same name if one is added again.</p>
    <//>`
    }
  <//>`;
}

function NewKey({ made, onClose }) {
  const heading = useRef(null);
  useEffect(() => heading.current.focus(), [made.key]);
  return html`<section class="new-key" aria-labelledby="new-key-title">
    <h2 id="new-key-title" tabindex="-1" ref=${heading}>The key of ${made.name}</h2>
    <p>It is shown only now: Portico keeps nothing but its hash. Copy it to the client.</p>
    <div class="command"><code data-testid="new-key">${made.key}</code></div>
    <div class="toolbar"><${CopyAs} text=${made.key} label="Copy the key" /><button type="button" class="button" onClick=${onClose}>Done</button></div>
  </section>`;
}
