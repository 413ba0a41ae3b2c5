/** Parses Prometheus' text format, and computes rates and quantiles from two samples of it. Pure. */

/**
 * @typedef {{labels: Object<string, string>, value: number}} Sample
 * @typedef {Map<string, Sample[]>} Samples samples by the full name, such as `portico_turns_total`
 */

const LABEL = /(?<![a-zA-Z0-9_])([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"/g;
const LINE = /^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?[ \t]+(\S+)(?:[ \t]+-?\d+)?$/;
const ESCAPES = { n: "\n", "\\": "\\", '"': '"' };

/**
 * Parse an answer of `GET /metrics`. Lines that are no samples are skipped.
 * @param {string} text
 * @returns {Samples}
 */
export function parseMetrics(text) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    if (!line || line.startsWith("#")) continue;
    const found = LINE.exec(line.trim());
    if (!found) continue;
    const value = parseValue(found[3]);
    if (value === null) continue;
    const labels = {};
    for (const [, name, escaped] of (found[2] ?? "").matchAll(LABEL)) {
      labels[name] = escaped.replace(/\\(.)/g, (all, char) => ESCAPES[char] ?? all);
    }
    const list = samples.get(found[1]);
    if (list) list.push({ labels, value });
    else samples.set(found[1], [{ labels, value }]);
  }
  return samples;
}

function parseValue(text) {
  if (text === "+Inf" || text === "Inf") return Infinity;
  if (text === "-Inf") return -Infinity;
  if (text === "NaN") return NaN;
  const value = Number(text);
  return Number.isNaN(value) ? null : value;
}

/**
 * The sum of all samples of a name whose labels match; null if the name has none at all.
 * @param {Samples} samples
 * @param {string} name
 * @param {(labels: Object<string, string>) => boolean} [matches]
 * @returns {number | null}
 */
export function total(samples, name, matches = () => true) {
  const list = samples.get(name);
  if (!list) return null;
  return list.reduce((sum, sample) => (matches(sample.labels) ? sum + sample.value : sum), 0);
}

/**
 * By how much a counter has grown between two scrapes. A counter that is smaller than before began anew with the daemon.
 * @param {number | null} before null if the counter did not exist yet
 * @param {number | null} now
 * @returns {number | null}
 */
export function increase(before, now) {
  if (now === null) return null;
  const start = before ?? 0;
  return now < start ? now : now - start;
}

/**
 * The buckets of a histogram, summed over the samples whose labels match, in the order of their bounds.
 * @param {Samples} samples
 * @param {string} name without `_bucket`
 * @param {(labels: Object<string, string>) => boolean} [matches]
 * @returns {{bound: number, count: number}[]} counts are cumulative, as Prometheus has them
 */
export function buckets(samples, name, matches = () => true) {
  const byBound = new Map();
  for (const { labels, value } of samples.get(`${name}_bucket`) ?? []) {
    if (!matches(labels)) continue;
    const bound = parseValue(labels.le ?? "");
    if (bound !== null) byBound.set(bound, (byBound.get(bound) ?? 0) + value);
  }
  return [...byBound].map(([bound, count]) => ({ bound, count })).sort((one, other) => one.bound - other.bound);
}

/**
 * What two scrapes of a histogram differ by.
 * @param {{bound: number, count: number}[]} before
 * @param {{bound: number, count: number}[]} now
 */
export function bucketIncrease(before, now) {
  const earlier = new Map(before.map(({ bound, count }) => [bound, count]));
  const restarted = now.some(({ bound, count }) => count < (earlier.get(bound) ?? 0));
  return now.map(({ bound, count }) => ({ bound, count: restarted ? count : count - (earlier.get(bound) ?? 0) }));
}

/**
 * A quantile of a histogram, by linear interpolation within its bucket as `histogram_quantile` of Prometheus does.
 * @param {{bound: number, count: number}[]} list cumulative
 * @param {number} fraction 0 to 1
 * @returns {number | null} null without observations; the highest finite bound for what is above all of them
 */
export function quantile(list, fraction) {
  const count = list.length ? list[list.length - 1].count : 0;
  if (!(count > 0)) return null;
  const rank = fraction * count;
  let lower = 0;
  let below = 0;
  for (const { bound, count: reached } of list) {
    if (reached >= rank && reached > below) {
      if (bound === Infinity) return lower;
      return lower + (bound - lower) * Math.max(0, (rank - below) / (reached - below));
    }
    if (bound !== Infinity) lower = bound;
    below = reached;
  }
  return lower;
}

/** The values of a label over the samples of a name, sorted. */
export function labelValues(samples, name, label) {
  const values = new Set((samples.get(name) ?? []).map((sample) => sample.labels[label]).filter((value) => value !== undefined));
  return [...values].sort();
}
