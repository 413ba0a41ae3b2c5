/** Icons: lines on a grid of 24, in the colour of the text. */
import { html } from "../preact.js";

const PATHS = {
  plus: "M12 5v14M5 12h14",
  close: "M6 6l12 12M18 6L6 18",
  check: "M5 12.5l4.5 4.5L19 7.5",
  search: "M11 4a7 7 0 1 0 0 14a7 7 0 0 0 0-14M16.2 16.2L21 21",
  menu: "M4 7h16M4 12h16M4 17h16",
  more: "M5 12h.01M12 12h.01M19 12h.01",
  "chevron-down": "M6 9l6 6l6-6",
  "chevron-right": "M9 6l6 6l-6 6",
  "chevron-left": "M15 6l-6 6l6 6",
  "chevron-up": "M6 15l6-6l6 6",
  "arrow-up": "M12 19V5M6 11l6-6l6 6",
  "arrow-down": "M12 5v14M6 13l6 6l6-6",
  "arrow-right": "M5 12h14M13 6l6 6l-6 6",
  inbox: "M4 13l2.5-8h11L20 13v6H4v-6zM4 13h5l1 2.5h4l1-2.5h5",
  agents: "M7 7h10v10H7zM10 3v4M14 3v4M10 17v4M14 17v4M3 10h4M3 14h4M17 10h4M17 14h4",
  policy: "M12 3l7.5 3v5.5c0 4.5-3.2 8-7.5 9.5c-4.3-1.500-7.500-5-7.500-9.500V6z",
  audit: "M6 3h9l4 4v14H6zM14 3v5h5M9 12h7M9 16h7",
  metrics: "M4 20V4M4 20h16M8 16v-4M12 16V8M16 16v-6",
  key: "M8 11a4 4 0 1 0 0 8a4 4 0 0 0 0-8M11 12l9-9M16.500 6.500l3 3",
  settings: "M4 7h9M17 7h3M13 4.500v5M4 17h3M11 17h9M7 14.500v5",
  sun: "M12 8a4 4 0 1 0 0 8a4 4 0 0 0 0-8M12 2v2M12 20v2M4.900 4.900l1.400 1.400M17.700 17.700l1.400 1.400M2 12h2M20 12h2M4.900 19.100l1.400-1.400M17.700 6.300l1.400-1.400",
  moon: "M20 14.500A8 8 0 0 1 9.500 4a8 8 0 1 0 10.500 10.500z",
  monitor: "M3 5h18v11H3zM9 20h6M12 16v4",
  bell: "M6 10a6 6 0 0 1 12 0c0 5 2 6 2 6H4s2-1 2-6M10 20h4",
  "bell-off": "M9 4.700A6 6 0 0 1 18 10c0 2 .3 3.500.8 4.500M6.500 8A7 7 0 0 0 6 10c0 5-2 6-2 6h12M10 20h4M3 3l18 18",
  "sign-out": "M14 4H5v16h9M10 12h11M17 8l4 4l-4 4",
  folder: "M3 6h6l2 2.500h10V19H3z",
  file: "M6 3h8l5 5v13H6zM14 3v5h5",
  edit: "M4 20l1-4L16.500 4.500l3 3L8 19zM14.500 6.500l3 3",
  trash: "M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13M10 11v5M14 11v5",
  fork: "M7 4a2 2 0 1 0 0 4a2 2 0 0 0 0-4M17 4a2 2 0 1 0 0 4a2 2 0 0 0 0-4M12 16a2 2 0 1 0 0 4a2 2 0 0 0 0-4M7 8c0 4 5 3 5 8M17 8c0 4-5 3-5 8",
  split: "M4 5h16v14H4zM12 5v14",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  play: "M8 5l11 7l-11 7z",
  pause: "M9 5v14M15 5v14",
  stop: "M7 7h10v10H7z",
  refresh: "M20 11a8 8 0 0 0-14.500-4L4 9M4 4v5h5M4 13a8 8 0 0 0 14.500 4L20 15M20 20v-5h-5",
  clock: "M12 4a8 8 0 1 0 0 16a8 8 0 0 0 0-16M12 8v4.500l3 2",
  warning: "M12 4L2.500 20h19zM12 10v4.500M12 17.200v.01",
  error: "M12 4a8 8 0 1 0 0 16a8 8 0 0 0 0-16M12 8v5M12 15.900v.01",
  info: "M12 4a8 8 0 1 0 0 16a8 8 0 0 0 0-16M12 11.500v4.500M12 8.200v.01",
  question: "M12 4a8 8 0 1 0 0 16a8 8 0 0 0 0-16M9.800 9.800a2.200 2.200 0 1 1 3.200 2c-.7.400-1 .8-1 1.600M12 16v.01",
  hand: "M8 12V6.500a1.500 1.500 0 0 1 3 0V11M11 10.500v-6a1.500 1.500 0 0 1 3 0v6M14 10.500v-4a1.500 1.500 0 0 1 3 0V14c0 4-2 6.500-5.500 6.500c-3 0-4.300-1.500-6-5L4 13a1.400 1.400 0 0 1 2.500-1.300L8 13.500",
  terminal: "M3 5h18v14H3zM7 9.500l3 2.500l-3 2.500M12.500 15H17",
  send: "M4 12l16-8l-5 16l-3.500-6.500zM11.500 13.500L20 4",
  paperclip: "M19 11l-7.500 7.500a4.500 4.500 0 0 1-6.400-6.400L13 4.300a3 3 0 0 1 4.300 4.300l-7.700 7.700a1.500 1.500 0 0 1-2.200-2.200L14 7.500",
  image: "M4 5h16v14H4zM4 16l4.500-4.500l4 4l2.500-2.500l5 5M15 9h.01",
  link: "M10 14a4 4 0 0 0 6 .4l3-3a4 4 0 0 0-5.700-5.700l-1 1M14 10a4 4 0 0 0-6-.4l-3 3A4 4 0 0 0 10.700 18.300l1-1",
  external: "M14 4h6v6M20 4l-9 9M18 14v6H4V6h6",
  download: "M12 4v11M7 10.500l5 5l5-5M4 20h16",
  filter: "M4 5h16l-6 7.500V19l-4 1.500v-8z",
  code: "M8 7l-5 5l5 5M16 7l5 5l-5 5",
  diff: "M12 4v8M8 8h8M8 18h8",
  list: "M8 6h12M8 12h12M8 18h12M4 6h.01M4 12h.01M4 18h.01",
  todo: "M10 6h10M10 12h10M10 18h10M3.500 6l1 1l2-2M3.500 12l1 1l2-2M3.500 18l1 1l2-2",
  brain: "M12 5a3 3 0 0 0-5.500 1.500A3 3 0 0 0 5 12a3 3 0 0 0 2 5a3 3 0 0 0 5 1.500zM12 5a3 3 0 0 1 5.500 1.500A3 3 0 0 1 19 12a3 3 0 0 1-2 5a3 3 0 0 1-5 1.500",
  tool: "M14.500 6.500a4 4 0 0 1 5-1l-2.500 2.500l1 1l2.500-2.500a4 4 0 0 1-5.500 5L8 18.500a1.800 1.800 0 0 1-2.500-2.500l7-7a4 4 0 0 1 2-2.500z",
  globe: "M12 4a8 8 0 1 0 0 16a8 8 0 0 0 0-16M4 12h16M12 4c3 3 3 13 0 16M12 4c-3 3-3 13 0 16",
  cpu: "M7 7h10v10H7zM10 3v4M14 3v4M10 17v4M14 17v4M3 10h4M3 14h4M17 10h4M17 14h4",
  keyboard: "M3 7h18v10H3zM7 10.500h.01M11 10.500h.01M15 10.500h.01M7 13.800h10",
  pin: "M9 4h6l-1 6l3 3H7l3-3zM12 13v7",
  dot: "M12 12h.01",
  eye: "M2.500 12S6 5.500 12 5.500S21.500 12 21.500 12S18 18.500 12 18.500S2.500 12 2.500 12M12 9.500a2.500 2.500 0 1 0 0 5a2.500 2.500 0 0 0 0-5",
  collapse: "M4 5h16v14H4zM9 5v14M16 9l-3 3l3 3",
  expand: "M8 4H4v4M16 4h4v4M8 20H4v-4M16 20h4v-4",
  steer: "M4 18c0-6 4-9 10-9h5M15 5l4 4l-4 4",
  queue: "M4 6h16M4 11h16M4 16h8M17 14v6M14 17h6",
};

/** An icon. Without a label it is decoration, which screen readers skip. */
export function Icon({ name, label, size = 16 }) {
  return html`<svg
    class="icon"
    width=${size}
    height=${size}
    viewBox="0 0 24 24"
    fill="none"
    stroke="currentColor"
    stroke-width=${name === "more" || name === "dot" ? 3 : 1.8}
    stroke-linecap="round"
    stroke-linejoin="round"
    role=${label ? "img" : undefined}
    aria-label=${label}
    aria-hidden=${label ? undefined : "true"}
    focusable="false"
  >
    <path d=${PATHS[name] ?? PATHS.dot} />
  </svg>`;
}
