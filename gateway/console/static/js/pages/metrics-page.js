/** The metrics page: samples of /metrics as small charts and as tables. */

import { send } from "../api.js";
import { html, useEffect, useState } from "../preact.js";
import { LineChart } from "./chart.js";
import { clock, formatBytes, formatNumber, formatSeconds } from "./format.js";
import { nextPoint, quantilesByAgent, totalsByAgent } from "./metrics-history.js";
import { Select, Spinner } from "../ui/index.js";
import { LoadError, Page, useInterval } from "./parts.js";
import { parseMetrics } from "./prometheus.js";

/** Milliseconds between two scrapes, and how many are kept: an hour. */
const INTERVAL = 2000;
const KEPT = 1800;
const WINDOWS = [
  { value: "2", label: "2 minutes" },
  { value: "10", label: "10 minutes" },
  { value: "60", label: "1 hour" },
];
/** Rows of the table view. */
const ROWS = 30;

const perSecond = (value) => (value === null || value === undefined ? "–" : `${formatNumber(value)}/s`);
const perMinute = (value) => (value === null || value === undefined ? "–" : `${formatNumber(value * 60)}/min`);
const percent = (value) => (value === null || value === undefined ? "–" : `${formatNumber(value * 100)} %`);

const CHARTS = [
  { id: "agents", title: "Live agents", lines: [["liveAgents", "live"]], format: formatNumber, least: 4 },
  {
    id: "turns",
    title: "Turns",
    lines: [
      ["running", "running"],
      ["waiting", "waiting for a client"],
    ],
    format: formatNumber,
    least: 4,
  },
  { id: "events", title: "Events", lines: [["events", "events"]], format: perSecond, least: 1 },
  {
    id: "latency",
    title: "First event",
    note: "turns of the last minute",
    lines: [
      ["median", "median"],
      ["p95", "95 %"],
    ],
    format: formatSeconds,
    least: 0.01,
  },
  {
    id: "errors",
    title: "Errors",
    lines: [
      ["failed", "failed turns"],
      ["crashes", "crashes"],
      ["refused", "HTTP 5xx"],
    ],
    format: perMinute,
    least: 1 / 60,
    unit: 1 / 60,
  },
  {
    id: "tokens",
    title: "Tokens",
    lines: [
      ["tokensIn", "input"],
      ["tokensOut", "output"],
    ],
    format: perSecond,
    least: 1,
  },
  { id: "memory", title: "Memory of the daemon", lines: [["memory", "memory"]], format: formatBytes, least: 1, unit: 2 ** 20 },
  { id: "cpu", title: "Processor time of the daemon", lines: [["cpu", "one core is 100 %"]], format: percent, least: 0.1 },
  { id: "http", title: "HTTP answers", lines: [["requests", "answers"]], format: perSecond, least: 1 },
  { id: "streams", title: "Open event streams", lines: [["streams", "streams"]], format: formatNumber, least: 4 },
];

/** The points stay while other pages are shown. */
let kept = [];
let newest = null;

export function MetricsPage() {
  const [points, setPoints] = useState(kept);
  const [error, setError] = useState(null);
  const [minutes, setMinutes] = useState(2);
  const [asTable, setAsTable] = useState(false);
  const [paused, setPaused] = useState(false);
  const [cursor, setCursor] = useState(null);

  const sample = async () => {
    try {
      const text = await (await send("GET", "/metrics")).text();
      const time = Date.now();
      newest = parseMetrics(text);
      kept = [...kept.slice(1 - KEPT), nextPoint(kept, newest, time)];
      setPoints(kept);
      setError(null);
    } catch (problem) {
      setError(problem);
    }
  };
  useEffect(() => void sample(), []);
  useInterval(() => paused || sample(), INTERVAL);

  const to = points.length ? points[points.length - 1].time : Date.now();
  const from = to - minutes * 60_000;
  const inView = points.filter((point) => point.time >= from);
  const controls = html`<div class="toolbar">
    <${Select} label="How far back" value=${String(minutes)} options=${WINDOWS} onChange=${(value) => setMinutes(Number(value))} />
    <button type="button" class="button" aria-pressed=${asTable} onClick=${() => setAsTable(!asTable)}>${asTable ? "Show charts" : "Show as tables"}</button>
    <button type="button" class="button" aria-pressed=${paused} onClick=${() => setPaused(!paused)}>${paused ? "Continue" : "Pause"}</button></div>`;
  return html`<${Page} title="Metrics" wide=${true}
    about="Of the whole gateway, read every 2 seconds while this page is open. Prometheus reads the same at /metrics.">
    ${controls}
    ${error && html`<${LoadError} error=${error} reload=${sample} what="The metrics" />`}
    ${points.length === 0 && !error && html`<p><${Spinner} label="The metrics are being loaded" /></p>`}
    ${
      asTable
        ? html`<${Values} points=${inView} />`
        : html`<div class="charts">${CHARTS.map(
            (
              chart,
            ) => html`<${LineChart} key=${chart.id} title=${chart.title} note=${chart.note} format=${chart.format} least=${chart.least} unit=${chart.unit}
          lines=${chart.lines.map(([name, label]) => ({ name: label, values: inView.map((point) => point.values[name] ?? null) }))}
          times=${inView.map((point) => point.time)} marks=${inView.filter((point) => point.restarted).map((point) => point.time)}
          from=${from} to=${to} cursor=${cursor} onCursor=${setCursor} />`,
          )}</div>`
    }
    ${newest && html`<${Totals} samples=${newest} />`}
  <//>`;
}

/** The same values as the charts, for those who do not see them. */
function Values({ points }) {
  const columns = CHARTS.flatMap(({ lines, format, title }) =>
    lines.map(([name, label]) => ({ name, format, title: lines.length > 1 ? `${title}: ${label}` : title })),
  );
  const rows = points.slice(-ROWS).reverse();
  return html`<div class="table-scroll" tabindex="0" role="region" aria-label="Values, newest first">
    <table class="table">
      <caption class="visually-hidden">Values of the last ${rows.length} readings, newest first</caption>
      <thead><tr><th scope="col">Time</th>${columns.map((column) => html`<th scope="col" class="number">${column.title}</th>`)}</tr></thead>
      <tbody>${rows.map(
        (point) => html`<tr key=${point.time}><th scope="row">${clock(point.time)}${point.restarted ? " (daemon started)" : ""}</th>
        ${columns.map(({ name, format }) => html`<td class="number">${format(point.values[name] ?? null)}</td>`)}</tr>`,
      )}</tbody>
    </table>
  </div>`;
}

function Totals({ samples }) {
  const totals = totalsByAgent(samples);
  const latencies = [
    ["First event", "portico_first_event_seconds", "From the prompt to the first event of the agent."],
    ["Whole turn", "portico_turn_seconds", "From the request of a turn to its last event."],
  ];
  return html`
    <h2>Since the start of the daemon</h2>
    ${totals.length === 0 && html`<p class="page-about">No agent has run yet.</p>`}
    ${
      totals.length > 0 &&
      html`<div class="table-scroll" tabindex="0" role="region" aria-label="Totals by agent"><table class="table">
      <caption>Totals by agent</caption>
      <thead><tr><th scope="col">Agent</th>${["Turns", "Failed", "Events", "Input tokens", "Output tokens", "Starts", "Crashes"].map((name) => html`<th scope="col" class="number">${name}</th>`)}</tr></thead>
      <tbody>${totals.map(
        (row) => html`<tr key=${row.agent}><th scope="row">${row.agent}</th>
        ${[row.turns, row.failed, row.events, row.tokensIn, row.tokensOut, row.starts, row.crashes].map((value) => html`<td class="number">${formatNumber(value)}</td>`)}</tr>`,
      )}</tbody>
    </table></div>`
    }
    ${latencies.map(([title, name, about]) => {
      const rows = quantilesByAgent(samples, name);
      return (
        rows.length > 0 &&
        html`<div class="table-scroll" tabindex="0" role="region" aria-label=${`${title}: quantiles by agent`}><table class="table">
        <caption>${title}: quantiles by agent <span class="dim">${about}</span></caption>
        <thead><tr><th scope="col">Agent</th>${["Turns", "Mean", "Median", "95 %", "99 %"].map((column) => html`<th scope="col" class="number">${column}</th>`)}</tr></thead>
        <tbody>${rows.map(
          (row) => html`<tr key=${row.agent}><th scope="row">${row.agent}</th><td class="number">${formatNumber(row.count)}</td>
          ${[row.mean, row.median, row.p95, row.p99].map((value) => html`<td class="number">${formatSeconds(value)}</td>`)}</tr>`,
        )}</tbody>
      </table></div>`
      );
    })}`;
}
