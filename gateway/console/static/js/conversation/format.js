/** Numbers as people read them. */

/** "0.4 s", "12 s", "3 min 5 s", "1 h 2 min". @param {number} milliseconds */
export function duration(milliseconds) {
  const seconds = milliseconds / 1000;
  if (seconds < 10) return `${(Math.round(seconds * 10) / 10).toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** "950", "1.2k", "34k", "1.2M". */
export function tokens(count) {
  if (count < 1000) return String(count);
  if (count < 10_000) return `${(count / 1000).toFixed(1)}k`;
  if (count < 1_000_000) return `${Math.round(count / 1000)}k`;
  return `${(count / 1_000_000).toFixed(1)}M`;
}

/** "$0.0042", "$1.25". */
export function dollars(amount) {
  return `$${amount < 0.1 ? amount.toFixed(4) : amount.toFixed(2)}`;
}

/** A time of day, with the date if it is not today. @param {number} seconds since the epoch */
export function timeOf(seconds) {
  const at = new Date(seconds * 1000);
  const today = at.toDateString() === new Date().toDateString();
  return at.toLocaleString(undefined, today ? { timeStyle: "short" } : { dateStyle: "medium", timeStyle: "short" });
}

/** The tokens of `usage` in words. */
export function usageWords(usage) {
  const parts = [
    [usage.input, "input"], [usage.cacheRead, "read from the cache"], [usage.cacheWrite, "written to the cache"], [usage.output, "output"],
    [usage.reasoning, "of them to think"],
  ];
  return parts.filter(([count]) => count > 0).map(([count, what]) => `${count.toLocaleString("en")} ${what}`).join(", ");
}
