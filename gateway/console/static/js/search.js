/** Search over titles and messages, and the quick switcher. */
import { AAP, api, query } from "./api.js";
import { visibleText } from "./conversation/safe-text.js";
import { score } from "./fuzzy.js";
import { Palette } from "./palette.js";
import { html, useEffect, useRef, useState } from "./preact.js";
import { navigate, route, sessionPath } from "./router.js";
import { StateBadge, openBeside } from "./session-list.js";
import { folderName, projectOf, shownTitle, useSession, useSessions, waitingSessions } from "./sessions.js";
import { Icon, TimeAgo } from "./ui/index.js";

const PAGE = 30;
/** Milliseconds without typing until a search begins. */
const PAUSE = 120;

const ROLES = { user: "You", assistant: "Agent", tool: "Tool", system: "System", title: "Title" };

/** Opens a session where an event is; with ctrl or cmd beside the others. */
function open(id, seq, event) {
  if (event?.ctrlKey || event?.metaKey) return openBeside(route.value, id);
  const path = sessionPath(id);
  return navigate(seq ? `${path}?seq=${seq}` : path);
}

const marked = (snippet) => snippet.map((part) => (part.match ? html`<mark>${visibleText(part.text)}</mark>` : visibleText(part.text)));

function Hit({ hit }) {
  const session = useSession(hit.sessionId);
  return html`<div class="hit">
    <div class="hit-head">
      <span class="hit-title" dir="auto">${hit.role === "title" ? marked(hit.snippet) : session ? shownTitle(session) : visibleText(hit.title) || "Session"}</span>
      <span class="dim">${hit.agent}</span>
      <${TimeAgo} at=${hit.updatedAt} />
    </div>
    ${hit.snippet?.length > 0 &&
    hit.role !== "title" &&
    html`<div class="hit-text" dir="auto">
      ${ROLES[hit.role] && html`<span class="hit-role">${ROLES[hit.role]}</span>`}
      ${marked(hit.snippet)}
    </div>`}
  </div>`;
}

export function Search({ onClose, initial = "" }) {
  const [text, setText] = useState(initial);
  const [state, setState] = useState({ results: [], next: null, busy: false, error: null, of: "" });
  const loading = useRef(false);
  const wanted = text.trim();

  useEffect(() => {
    if (!wanted) {
      setState({ results: [], next: null, busy: false, error: null, of: "" });
      return undefined;
    }
    const abort = new AbortController();
    const timer = setTimeout(async () => {
      setState((before) => ({ ...before, busy: true }));
      try {
        const page = await api.get(`${AAP}/search${query({ q: wanted, limit: PAGE })}`, { signal: abort.signal });
        setState({ results: page.results, next: page.next ?? null, busy: false, error: null, of: wanted });
      } catch (error) {
        if (error.name !== "AbortError") setState({ results: [], next: null, busy: false, error: error.message, of: wanted });
      }
    }, PAUSE);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [wanted]);

  const more = async () => {
    if (!state.next || loading.current || state.of !== wanted) return;
    loading.current = true;
    try {
      const page = await api.get(`${AAP}/search${query({ q: wanted, limit: PAGE, after: state.next })}`);
      setState((before) => (before.of === wanted ? { ...before, results: [...before.results, ...page.results], next: page.next ?? null } : before));
    } catch (error) {
      setState((before) => ({ ...before, error: error.message, next: null }));
    } finally {
      loading.current = false;
    }
  };

  const items = state.results.map((hit, index) => ({
    key: `${index}-${hit.sessionId}-${hit.position ?? "title"}`,
    content: html`<${Hit} hit=${hit} />`,
    run: (event) => open(hit.sessionId, hit.seq, event),
  }));
  const found = state.results.length;
  const note = state.error
    ? `The search failed: ${state.error}`
    : !wanted
      ? "Words in any order; “several words” in quotation marks are a phrase."
      : state.of === wanted && !found
        ? "Nothing found."
        : state.of === wanted
          ? `${found}${state.next ? " or more" : ""} ${found === 1 ? "result" : "results"}`
          : "";
  return html`<${Palette} title="Search sessions and messages" placeholder="Search titles and messages" text=${text} onText=${setText} items=${items} busy=${state.busy} stale=${state.of !== wanted} note=${note} onEnd=${more} onClose=${onClose} />`;
}

/** Goes to a session or page by a few letters. `pages`: `{name: {title, icon}}`; `commands`: `[{label, icon, run}]`. */
export function Switcher({ onClose, pages, commands = [], onSearch }) {
  const [text, setText] = useState("");
  const sessions = useSessions();
  const wanted = text.trim();
  const waiting = new Set(waitingSessions().map((session) => session.sessionId));

  const candidates = [
    ...sessions.map((session, index) => ({
      text: `${shownTitle(session)} ${folderName(projectOf(session))} ${session.agent.name}`,
      // Without a word: what waits for the user first, then by activity.
      bonus: (waiting.has(session.sessionId) ? 5 : 0) - index / 1000,
      key: session.sessionId,
      content: html`<div class="switch-item">
        <span class="switch-title" dir="auto">${shownTitle(session)}</span>
        <span class="dim switch-folder" dir="auto">${projectOf(session) ? folderName(projectOf(session)) : ""}</span>
        <span class="dim">${session.agent.name}</span>
        <${StateBadge} session=${session} />
      </div>`,
      run: (event) => open(session.sessionId, null, event),
    })),
    ...[
      { label: "New session", icon: "plus", run: () => navigate("/") },
      { label: "Inbox", icon: "inbox", run: () => navigate("/inbox") },
      ...Object.entries(pages).map(([name, page]) => ({ label: page.title, icon: page.icon, run: () => navigate(`/${name}`) })),
      ...commands,
    ].map((command, index) => ({
      text: command.label,
      bonus: -10 - index / 100,
      key: `command-${command.label}`,
      content: html`<div class="switch-item"><${Icon} name=${command.icon} /><span class="switch-title">${command.label}</span></div>`,
      run: command.run,
    })),
  ];
  const items = candidates
    .map((item) => ({ ...item, score: wanted ? score(item.text, wanted) : 0 }))
    .filter((item) => item.score !== null)
    .sort((a, b) => b.score + b.bonus - a.score - a.bonus)
    .slice(0, 60);
  if (wanted && onSearch) {
    items.push({
      key: "search",
      content: html`<div class="switch-item"><${Icon} name="search" /><span class="switch-title">Search messages for “<span dir="auto">${wanted}</span>”</span></div>`,
      run: () => onSearch(wanted),
    });
  }
  return html`<${Palette} title="Go to a session or page" placeholder="Go to a session or page" text=${text} onText=${setText} items=${items} onClose=${onClose} />`;
}
