/** Who is signed in, and the page where that happens. */
import { ApiError, api, signInToken, unauthorized } from "./api.js";
import { forgetDrafts } from "./composer/drafts.js";
import { forgetStored, observable, useObservable } from "./observable.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "./preact.js";
import { Button, Icon } from "./ui/index.js";

/**
 * `{name, administrator, open}`, null if nobody is signed in, undefined until that is known. `open` is true if the daemon asks for no key.
 */
export const account = observable(undefined);

/** Why the last attempt failed, in words, or null. */
export const problem = observable(null);

// The code leaves the address bar, and with it the history, before anything is requested.
const code = /^#code=([^&]+)/.exec(location.hash)?.[1] ?? null;
if (code) history.replaceState(null, "", location.pathname + location.search);

async function exchange(body) {
  const { token, ...who } = await api.post("/v1/sign-ins", body);
  signInToken.set(token);
  problem.value = null;
  account.value = who;
}

async function current() {
  account.value = await api.get("/v1/sign-ins/current");
}

/** `{name}` while a link offers another sign-in, or null. `name` is the key that this browser is signed in with, null if its sign-in has ended. */
const offered = observable(null);

/**
 * Finds out who is signed in: by the code of the link that opened the page, or by an earlier sign-in of this browser.
 *
 * Anybody with a key can make a link. So it does not replace a sign-in with a default key, and another one only if the user says so. The user is
 * asked too where the sign-in has ended: a page of another port can end it, by deleting the cookie.
 */
export async function begin() {
  if (!code || !signInToken.get()) return signInOrGoOn(code);
  try {
    const before = await api.get("/v1/sign-ins/current");
    if (before.administrator) account.value = before;
    else offer(before.name);
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) offer(null);
    else tryAgain(begin, error);
  }
}

function offer(name) {
  offered.value = { name };
  account.value = null;
}

function tryAgain(attempt, error) {
  problem.value = error.message;
  account.value = undefined;
  setTimeout(attempt, 1500);
}

async function signInOrGoOn(code) {
  if (code) {
    try {
      return await exchange({ code: decodeURIComponent(code) });
    } catch (error) {
      problem.value = error.status === 0 ? error.message : "This link was used before or is older than a minute. Run portico open for a new one.";
    }
  }
  try {
    await current();
    problem.value = null;
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) account.value = null;
    else tryAgain(signInOrGoOn, error);
  }
}

unauthorized.subscribe(() => {
  if (account.value) {
    problem.value = "You are signed out: the sign-in has ended, or its key was removed.";
    account.value = null;
  }
});

// Another window signed in or out.
addEventListener("storage", (event) => {
  if (event.key !== "portico.signIn") return;
  if (event.newValue) signInOrGoOn();
  else account.value = null;
});

export async function signOut() {
  try {
    await api.delete("/v1/sign-ins/current");
  } catch (error) {
    if (error.status !== 401) throw error;
  }
  signInToken.clear();
  forgetDrafts();
  forgetStored();
  account.value = null;
}

export function SignIn() {
  const given = useObservable(offered);
  return given === null ? html`<${KeyForm} />` : html`<${Offer} name=${given.name} />`;
}

function Offer({ name }) {
  const answer = (given) => {
    offered.value = null;
    account.value = undefined;
    signInOrGoOn(given);
  };
  return html`<main class="sign-in">
    <div class="sign-in-card">
      <div class="brand large"><${Logo} size=${28} /><span>Portico</span></div>
      <h1>Another sign-in</h1>
      <p>
        ${name === null ? "This browser was signed in, and its sign-in has ended." : html`This browser is signed in with the key <strong><bdi>${name}</bdi></strong>.`}
        ${" "}The link that you opened signs it in anew, maybe with another key.
      </p>
      <${Button} kind="primary" onClick=${() => answer(null)}>${name === null ? "Enter a key" : `Stay with ${name}`}<//>
      <${Button} onClick=${() => answer(code)}>Use the link<//>
    </div>
  </main>`;
}

function KeyForm() {
  const [key, setKey] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(problem.value);
  const field = useRef(null);
  useEffect(() => problem.subscribe(setError), []);
  useLayoutEffect(() => field.current?.focus(), []);
  const submit = async (event) => {
    event.preventDefault();
    if (!key.trim()) {
      setError("Enter a key.");
      field.current.focus();
      return;
    }
    setBusy(true);
    setError(null);
    try {
      await exchange({ key: key.trim() });
    } catch (failure) {
      setBusy(false);
      setError(failure.status === 401 ? "This key is not valid." : failure.message);
      field.current?.select();
    }
  };
  return html`<main class="sign-in">
    <form class="sign-in-card" onSubmit=${submit} autocomplete="off">
      <div class="brand large"><${Logo} size=${28} /><span>Portico</span></div>
      <h1>Sign in</h1>
      <p class="dim">On the machine that Portico runs on, <code>portico open</code> signs you in. Or enter a key.</p>
      <label class="field">
        <span class="field-label">Key</span>
        <input
          ref=${field}
          class="input"
          type="password"
          name="portico-key"
          autocomplete="current-password"
          spellcheck=${false}
          value=${key}
          aria-invalid=${error ? "true" : undefined}
          aria-describedby="sign-in-error"
          onInput=${(event) => setKey(event.target.value)}
        />
      </label>
      <p id="sign-in-error" class="form-error" role="alert">${error && html`<${Icon} name="error" /> <span>${error}</span>`}</p>
      <${Button} kind="primary" type="submit" busy=${busy}>Sign in</${Button}>
      <p class="dim small-text"><code>portico key</code> prints the key. It is exchanged for a sign-in of this browser and not kept.</p>
    </form>
  </main>`;
}

export function Logo({ size = 20 }) {
  return html`<svg class="logo" width=${size} height=${size} viewBox="0 0 24 24" aria-hidden="true" focusable="false">
    <path d="M3 9.500L12 4l9 5.500" fill="none" stroke="currentColor" stroke-width="2" stroke-linejoin="round" stroke-linecap="round" />
    <path d="M5.500 12.500v6M10 12.500v6M14 12.500v6M18.500 12.500v6M3 21.200h18" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" />
  </svg>`;
}
