/** Numbers, sizes and times as texts for people. Pure. */

const NONE = "–";
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** Three significant digits, without an exponent: 0.0123, 1.23, 12.3, 1,234. */
export function formatNumber(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return NONE;
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (Math.abs(value) >= 1000 || Number.isInteger(value)) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(3)));
}

export function formatBytes(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return NONE;
  let unit = 0;
  let amount = value;
  while (Math.abs(amount) >= 1024 && unit < UNITS.length - 1) {
    amount /= 1024;
    unit += 1;
  }
  return `${unit && Math.abs(amount) < 100 ? amount.toFixed(1) : Math.round(amount)} ${UNITS[unit]}`;
}

/** A length of time: 850 µs, 12 ms, 1.25 s, 2 min 5 s, 3 h 20 min, 4 d 2 h. */
export function formatSeconds(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return NONE;
  if (!Number.isFinite(value)) return "∞";
  if (value < 0.0005) return value <= 0 ? "0 s" : `${Math.max(1, Math.round(value * 1e6))} µs`;
  if (value < 0.9995) return `${formatNumber(Math.round(value * 1000))} ms`;
  if (value < 60) return `${Number(value.toPrecision(3))} s`;
  const seconds = Math.round(value);
  if (seconds < 3600) return join(Math.floor(seconds / 60), "min", seconds % 60, "s");
  if (seconds < 86400) return join(Math.floor(seconds / 3600), "h", Math.floor((seconds % 3600) / 60), "min");
  return join(Math.floor(seconds / 86400), "d", Math.floor((seconds % 86400) / 3600), "h");
}

function join(large, unit, small, smaller) {
  return small ? `${large} ${unit} ${small} ${smaller}` : `${large} ${unit}`;
}

/** A time of day in the browser's zone: 14:03:09, with `precise` 14:03:09.123. */
export function clock(milliseconds, precise = false) {
  const date = new Date(milliseconds);
  if (Number.isNaN(date.getTime())) return NONE;
  const two = (number) => String(number).padStart(2, "0");
  const text = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return precise ? `${text}.${String(date.getMilliseconds()).padStart(3, "0")}` : text;
}

/** A date with its time in the browser's zone: 2026-11-23 14:03:09; a dash for what is no time. */
export function dateTime(iso) {
  const date = new Date(iso ?? NaN);
  if (Number.isNaN(date.getTime())) return NONE;
  const two = (number) => String(number).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${clock(date)}`;
}

/** How long ago a time was, in whole seconds; null for what is no time. */
export function wholeSeconds(iso, now = Date.now()) {
  const time = new Date(iso ?? NaN).getTime();
  return Number.isNaN(time) ? null : Math.max(0, Math.floor((now - time) / 1000));
}

const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\u{e0000}-\u{e007f}]/gu;

/** A text in which control characters, tags, and what changes the direction of text are shown as \u escapes. */
export function visible(text) {
  const escaped = (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return text.replace(CONTROL, (char) => char.split("").map(escaped).join(""));
}
