/** The numbers of the metrics page: what is read from one scrape of /metrics, and what from two. Pure. */

import { bucketIncrease, buckets, increase, labelValues, quantile, total } from "./prometheus.js";

/** Milliseconds: rates between scrapes that are further apart would hide what happened between. */
const LONGEST_STEP = 30_000;
/** Latency is of the turns of so many milliseconds. */
const LATENCY_WINDOW = 60_000;

const COUNTERS = {
  events: ["portico_events_total"],
  turns: ["portico_turns_total"],
  failed: ["portico_turns_total", (labels) => labels.stop_reason === "error"],
  crashes: ["portico_agent_crashes_total"],
  tokensIn: ["portico_tokens_total", (labels) => labels.kind !== "output"],
  tokensOut: ["portico_tokens_total", (labels) => labels.kind === "output"],
  requests: ["portico_http_requests_total"],
  refused: ["portico_http_requests_total", (labels) => labels.status >= "500"],
  cpu: ["process_cpu_seconds_total"],
};
const GAUGES = {
  liveAgents: "portico_live_agents",
  running: "portico_running_turns",
  waiting: "portico_waiting_sessions",
  streams: "portico_open_streams",
  unwritten: "portico_store_unwritten_bytes",
  memory: "process_resident_memory_bytes",
  files: "process_open_fds",
};

/**
 * @typedef {object} Point one moment of the charts
 * @property {number} time milliseconds since the epoch
 * @property {Object<string, number | null>} values gauges, rates per second, and quantiles in seconds
 * @property {boolean} restarted whether the daemon is another process than at the point before
 * @property {Object<string, number | null>} counters
 * @property {{bound: number, count: number}[]} firstEvent
 * @property {number | null} startedAt
 */

/**
 * Make the next point from a scrape.
 * @param {Point[]} earlier
 * @param {import('./prometheus.js').Samples} samples
 * @param {number} time
 * @returns {Point}
 */
export function nextPoint(earlier, samples, time) {
  const last = earlier[earlier.length - 1];
  const startedAt = total(samples, "process_start_time_seconds");
  const restarted = Boolean(last) && last.startedAt !== null && startedAt !== null && last.startedAt !== startedAt;
  const counters = {};
  for (const [name, [metric, matches]] of Object.entries(COUNTERS)) counters[name] = total(samples, metric, matches) ?? 0;
  const values = {};
  for (const [name, metric] of Object.entries(GAUGES)) values[name] = total(samples, metric);
  const step = last && !restarted && time - last.time <= LONGEST_STEP ? (time - last.time) / 1000 : null;
  for (const [name, now] of Object.entries(counters)) values[name] = step ? increase(last.counters[name], now) / step : null;
  const firstEvent = buckets(samples, "portico_first_event_seconds");
  const base = earlier.find((point) => point.time >= time - LATENCY_WINDOW && point.startedAt === startedAt);
  const recent = base ? bucketIncrease(base.firstEvent, firstEvent) : [];
  values.median = quantile(recent, 0.5);
  values.p95 = quantile(recent, 0.95);
  return { time, values, restarted, counters, firstEvent, startedAt };
}

/**
 * The quantiles of a histogram for each agent since the daemon's start.
 * @param {import('./prometheus.js').Samples} samples
 * @param {string} name
 * @returns {{agent: string, count: number, mean: number | null, median: number | null, p95: number | null, p99: number | null}[]}
 */
export function quantilesByAgent(samples, name) {
  return labelValues(samples, `${name}_count`, "agent").map((agent) => {
    const own = (labels) => labels.agent === agent;
    const list = buckets(samples, name, own);
    const count = total(samples, `${name}_count`, own) ?? 0;
    const sum = total(samples, `${name}_sum`, own) ?? 0;
    return {
      agent,
      count,
      mean: count ? sum / count : null,
      median: quantile(list, 0.5),
      p95: quantile(list, 0.95),
      p99: quantile(list, 0.99),
    };
  });
}

/** What each agent has done since the daemon's start, from counters. */
export function totalsByAgent(samples) {
  const agents = new Set(
    ["portico_turns_total", "portico_events_total", "portico_agent_starts_total"].flatMap((name) => labelValues(samples, name, "agent")),
  );
  return [...agents].sort().map((agent) => {
    const own = (labels) => labels.agent === agent;
    return {
      agent,
      turns: total(samples, "portico_turns_total", own) ?? 0,
      failed: total(samples, "portico_turns_total", (labels) => own(labels) && labels.stop_reason === "error") ?? 0,
      events: total(samples, "portico_events_total", own) ?? 0,
      tokensIn: total(samples, "portico_tokens_total", (labels) => own(labels) && labels.kind !== "output") ?? 0,
      tokensOut: total(samples, "portico_tokens_total", (labels) => own(labels) && labels.kind === "output") ?? 0,
      starts: total(samples, "portico_agent_starts_total", own) ?? 0,
      crashes: total(samples, "portico_agent_crashes_total", own) ?? 0,
    };
  });
}
