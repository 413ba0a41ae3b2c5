/** The console: sidebar, panes, and what belongs to the whole window. */
import { connection } from "./api.js";
import { lazy, prefetch } from "./lazy.js";
import { observable, stored, useObservable } from "./observable.js";
import { html, render, useEffect, useErrorBoundary, useLayoutEffect, useRef, useState } from "./preact.js";
import { Link, navigate, sessionPath, useRoute } from "./router.js";
import { Search, Switcher } from "./search.js";
import { ListTools, SessionList } from "./session-list.js";
import { loadSession, shownTitle, start, stop, useMarkSeen, useSession, useSessions, waitingSessions } from "./sessions.js";
import { ShortcutHelp, useShortcuts } from "./shortcuts.js";
import { Logo, SignIn, account, begin, problem, signOut } from "./sign-in.js";
import { Button, Empty, Icon, IconButton, Menu, PaneHeader, Spinner, Splitter, Toasts, toast } from "./ui/index.js";

const Conversation = lazy(() => import("./conversation/conversation.js"), "Conversation");
const NewSession = lazy(() => import("./composer/new-session.js"), "NewSession");
const Inbox = lazy(() => import("./approvals/inbox.js"), "Inbox");
const EventsPane = lazy(() => import("./pages/events-pane.js"), "EventsPane");
const PAGES = {
  agents: { title: "Agents", icon: "agents", keys: "g a", component: lazy(() => import("./pages/agents-page.js"), "AgentsPage") },
  policy: { title: "Policy", icon: "policy", keys: "g p", component: lazy(() => import("./pages/policy-page.js"), "PolicyPage") },
  audit: { title: "Audit", icon: "audit", keys: "g u", component: lazy(() => import("./pages/audit-page.js"), "AuditPage") },
  metrics: { title: "Metrics", icon: "metrics", keys: "g m", component: lazy(() => import("./pages/metrics-page.js"), "MetricsPage") },
  keys: { title: "Keys", icon: "key", keys: "g k", component: lazy(() => import("./pages/keys-page.js"), "KeysPage") },
};
const Notifications = lazy(() => import("./approvals/notifications.js"), "Notifications", { waiting: null });

/** "system", "light" or "dark". */
export const theme = stored("portico.theme", "system");
const sidebarWidth = stored("portico.sidebarWidth", 300);
const drawer = observable(false);
const overlay = observable(null);

/** What the quick switcher offers besides sessions and pages. */
const COMMANDS = [
  { label: "Theme: system", icon: "monitor", run: () => (theme.value = "system") },
  { label: "Theme: light", icon: "sun", run: () => (theme.value = "light") },
  { label: "Theme: dark", icon: "moon", run: () => (theme.value = "dark") },
  { label: "Keyboard shortcuts", icon: "keyboard", run: () => (overlay.value = "help") },
];

theme.subscribe(applyTheme);
function applyTheme(value) {
  if (value === "light" || value === "dark") document.documentElement.dataset.theme = value;
  else delete document.documentElement.dataset.theme;
}
applyTheme(theme.value);

const narrow = matchMedia("(max-width: 820px)");
function useNarrow() {
  const [value, setValue] = useState(narrow.matches);
  useEffect(() => {
    const update = () => setValue(narrow.matches);
    narrow.addEventListener("change", update);
    return () => narrow.removeEventListener("change", update);
  }, []);
  return value;
}

/** Says in words that the connection is interrupted, if that lasts for more than a second. */
function ConnectionBanner() {
  const state = useObservable(connection);
  const [shown, setShown] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setShown(state !== "online"), state === "online" ? 0 : 1000);
    return () => clearTimeout(timer);
  }, [state]);
  return html`<div class=${`connection${shown ? " shown" : ""}`} role="status">
    ${shown && html`<span class="spinner" aria-hidden="true"></span> Connection lost. Reconnecting…`}
  </div>`;
}

function SettingsMenu() {
  const chosen = useObservable(theme);
  const who = useObservable(account);
  const items = () => [
    { heading: "Theme" },
    ...[
      ["system", "System"],
      ["light", "Light"],
      ["dark", "Dark"],
    ].map(([value, label]) => ({ label, checked: chosen === value, run: () => (theme.value = value) })),
    "separator",
    ...notificationItems(),
    { label: "Keyboard shortcuts", icon: "keyboard", hint: "?", run: () => (overlay.value = "help") },
    who?.open ? null : "separator",
    who?.open ? null : { label: "Sign out", icon: "sign-out", run: () => signOut().catch((error) => toast(`Not signed out: ${error.message}`, { kind: "error" })) },
  ];
  return html`<${Menu} label="Settings" icon="settings" items=${items} />`;
}

let notifications = null;
import("./approvals/notifications.js").then(
  (module) => (notifications = module),
  () => {},
);

/** The menu's items for notifications, by the module that shows them. */
function notificationItems() {
  return notifications?.notificationItems?.() ?? [];
}

function Sidebar({ onNavigate, width, children }) {
  const route = useRoute();
  const who = useObservable(account);
  const waiting = useWaitingCount();
  return html`<nav class="sidebar" aria-label="Sessions and pages" style=${width ? { width: `${width}px` } : {}} onClick=${(event) => event.target.closest("a[href]") && onNavigate?.()}>
    <header class="sidebar-header">
      <${Link} href="/" class="brand"><${Logo} /><span>Portico</span></${Link}>
      ${who?.name && html`<span class="who" title=${`Signed in with the key ${who.name}`} dir="auto">${who.name}</span>`}
      <${SettingsMenu} />
    </header>
    <div class="sidebar-actions">
      <${Link} href="/" class="button primary" aria-current=${route.page === "home" ? "page" : undefined}><${Icon} name="plus" />New session</${Link}>
      <button type="button" class="button" onClick=${() => (overlay.value = { search: "" })}><${Icon} name="search" />Search<kbd>/</kbd></button>
      <${Link} href="/inbox" class=${`nav-link${waiting ? " attention" : ""}`} aria-current=${route.page === "inbox" ? "page" : undefined}>
        <${Icon} name="inbox" />Inbox${waiting > 0 && html`<span class="count" aria-label=${`${waiting} waiting`}>${waiting}</span>`}
      </${Link}>
    </div>
    <${ListTools} />
    <${SessionList} />
    <footer class="sidebar-footer">
      ${Object.entries(PAGES).map(
        ([name, page]) => html`<${Link} key=${name} href=${`/${name}`} class="page-link" aria-current=${route.page === name ? "page" : undefined}>
          <${Icon} name=${page.icon} size=${18} />${page.title}
        </${Link}>`,
      )}
    </footer>
    ${children}
  </nav>`;
}

function useWaitingCount() {
  useSessions();
  return waitingSessions().length;
}

/** Has its errors for itself, so that the rest of the window goes on. */
function Boundary({ children }) {
  const [error, reset] = useErrorBoundary((failure) => console.error(failure));
  if (!error) return children;
  return html`<${Empty} icon="error" title="This part of the console failed" action=${html`<${Button} onClick=${reset}>Try again</${Button}>`}>${String(error?.message ?? error)}</${Empty}>`;
}

function SessionPane({ id, main, alone, onClose }) {
  const session = useSession(id);
  const [missing, setMissing] = useState(false);
  const [error, setError] = useState(null);
  useMarkSeen(id);
  useEffect(() => {
    setMissing(false);
    if (session) return;
    loadSession(id).then(
      (found) => setMissing(!found),
      (failure) => setError(failure.message),
    );
  }, [id, Boolean(session)]);
  return html`<section class="pane" aria-label=${main ? "Session" : "Session beside"} data-session=${id}>
    ${!alone && html`<${IconButton} class="pane-close" icon="close" label="Close this pane" onClick=${onClose} />`}
    ${session
      ? html`<${Boundary} key=${id}><${Conversation} sessionId=${id} /></${Boundary}>`
      : missing
        ? html`<${Empty} icon="question" title="There is no such session" action=${html`<${Link} class="button" href="/">All sessions</${Link}>`}>It was deleted, or it belongs to another key.</${Empty}>`
        : error
          ? html`<${Empty} icon="error" title="The session could not be read">${error}</${Empty}>`
          : html`<div class="page-loading"><${Spinner} /></div>`}
  </section>`;
}

function Panes({ route }) {
  const isNarrow = useNarrow();
  const all = [route.sessionId, ...route.also];
  const close = (id) => {
    const rest = all.filter((other) => other !== id);
    navigate(sessionPath(rest[0], rest.slice(1)));
  };
  // A phone has room for one: the others stay in the address.
  const shown = isNarrow ? all.slice(0, 1) : all;
  return html`<div class="panes">
    ${shown.map((id, index) => html`<${SessionPane} key=${id} id=${id} main=${index === 0} alone=${shown.length === 1} onClose=${() => close(id)} />`)}
  </div>`;
}

function Page({ route }) {
  if (route.page === "session") return html`<${Panes} route=${route} />`;
  if (route.page === "home") return html`<section class="pane" aria-label="New session"><${NewSession} /></section>`;
  if (route.page === "inbox") return html`<section class="pane" aria-label="Inbox"><${Inbox} /></section>`;
  if (route.page === "events") return html`<section class="pane" aria-label="Events"><${EventsPane} key=${route.sessionId} sessionId=${route.sessionId} /></section>`;
  const page = PAGES[route.page];
  if (page) return html`<section class="pane" aria-label=${page.title}><${page.component} /></section>`;
  return html`<section class="pane">
    <${PaneHeader} title="Not found" />
    <${Empty} icon="question" title="There is no such page" action=${html`<${Link} class="button" href="/">All sessions</${Link}>`} />
  </section>`;
}

function Shell() {
  const route = useRoute();
  useTitle(route);
  const isNarrow = useNarrow();
  const isOpen = useObservable(drawer);
  const width = useObservable(sidebarWidth);
  const over = useObservable(overlay);
  const close = () => (overlay.value = null);
  useEffect(() => {
    start();
    const timer = setTimeout(prefetch, 200);
    return () => {
      clearTimeout(timer);
      stop();
    };
  }, []);
  useEffect(() => {
    drawer.value = false;
  }, [route.path, isNarrow]);
  useShortcuts([
    { keys: "?", label: "Keyboard shortcuts", run: () => void (overlay.value = "help") },
    { keys: "mod+k", label: "Go to a session or page", run: () => void (overlay.value = "switcher") },
    { keys: "/", label: "Search sessions and messages", run: () => void (overlay.value = { search: "" }) },
    { keys: "n", label: "New session", run: () => navigate("/") },
    { keys: "g i", label: "Inbox", group: "Pages", run: () => navigate("/inbox") },
    ...Object.entries(PAGES).map(([name, page]) => ({ keys: page.keys, label: page.title, group: "Pages", run: () => navigate(`/${name}`) })),
  ]);
  return html`<div class=${`shell${isNarrow ? " narrow" : ""}`}>
    <a class="skip-link" href="#content" onClick=${(event) => (event.preventDefault(), document.getElementById("content").focus())}>Skip to the content</a>
    ${isNarrow
      ? html`<${IconButton} class="drawer-button" icon="menu" size=${20} label="Sessions and pages" aria-expanded=${String(isOpen)} onClick=${() => (drawer.value = true)} />
          ${isOpen && html`<${Drawer} />`}`
      : html`<${Sidebar} width=${width}>
          <${Splitter} label="Width of the sidebar" value=${width} min=${220} max=${520} onChange=${(value) => (sidebarWidth.value = value)} onReset=${() => (sidebarWidth.value = 300)} />
        </${Sidebar}>`}
    <main class="content" id="content" tabindex="-1"><${ConnectionBanner} /><${Boundary} key=${route.page}><${Page} route=${route} /></${Boundary}></main>
    ${over === "help" && html`<${ShortcutHelp} onClose=${close} />`}
    ${typeof over?.search === "string" && html`<${Search} initial=${over.search} onClose=${close} />`}
    ${over === "switcher" && html`<${Switcher} pages=${PAGES} commands=${COMMANDS} onSearch=${(text) => (overlay.value = { search: text })} onClose=${close} />`}
    <${Notifications} />
  </div>`;
}

/** Names the window after what it shows. */
function useTitle(route) {
  const session = useSession(route.sessionId);
  const name = session ? shownTitle(session) : (PAGES[route.page]?.title ?? { inbox: "Inbox", home: "New session" }[route.page]);
  useEffect(() => {
    document.title = name ? `${name} · Portico` : "Portico";
  }, [name]);
}

/** The sidebar on a phone: over the page, closed by Esc, a click beside it, or by going somewhere. */
function Drawer() {
  const close = () => (drawer.value = false);
  return html`<${DrawerDialog} onClose=${close}><${Sidebar} onNavigate=${close} /></${DrawerDialog}>`;
}

function DrawerDialog({ onClose, children }) {
  const dialog = useRef(null);
  // Before the next key, which may be Esc.
  useLayoutEffect(() => dialog.current.showModal(), []);
  return html`<dialog class="drawer" aria-label="Sessions and pages" ref=${dialog}
    onCancel=${(event) => (event.preventDefault(), onClose())}
    onMouseDown=${(event) => event.target === dialog.current && onClose()}>${children}</dialog>`;
}

function Connecting() {
  const reason = useObservable(problem);
  return html`<main class="page-loading"><div class="empty"><${Spinner} label="Connecting" />${reason && html`<p class="empty-text" role="status">${reason} Trying again…</p>`}</div></main>`;
}

export function App() {
  const who = useObservable(account);
  useEffect(() => void begin(), []);
  return html`${who === undefined ? html`<${Connecting} />` : who === null ? html`<${SignIn} />` : html`<${Shell} key=${who.name ?? ""} />`}<${Toasts} />`;
}

render(html`<${App} />`, document.getElementById("app"));
