/** A small line chart as SVG. Lines differ by their dashes, and their values stand in the legend, so that no colour is needed. */

import { html, useRef } from "../preact.js";
import { HEIGHT, WIDTH, linePath, nearest, niceCeiling } from "./chart-scale.js";
import { clock } from "./format.js";

/**
 * @param {object} props
 * @param {string} props.title
 * @param {string} [props.note] of what the values are
 * @param {{name: string, values: (number | null)[]}[]} props.lines three at most
 * @param {number[]} props.times milliseconds since the epoch, ascending
 * @param {number[]} props.marks times at which the daemon was started anew
 * @param {number} props.from the beginning of the time axis
 * @param {number} props.to its end
 * @param {(value: number | null) => string} props.format
 * @param {number} [props.least] the end of the value axis is this at least
 * @param {number} [props.unit] in which the end of the value axis is a round number
 * @param {number | null} props.cursor the time that is pointed at, in this chart or another
 * @param {(time: number | null) => void} props.onCursor
 */
export function LineChart({ title, note, lines, times, marks, from, to, format, least = 0, unit = 1, cursor, onCursor }) {
  const plot = useRef(null);
  const known = lines.flatMap(({ values }) => values.filter((value) => value !== null && Number.isFinite(value)));
  const top = niceCeiling(Math.max(least, ...known) / unit) * unit;
  const at = cursor === null ? times.length - 1 : nearest(times, cursor);
  const x = (time) => ((time - from) / (to - from || 1)) * WIDTH;
  const move = (event) => {
    const box = plot.current.getBoundingClientRect();
    onCursor(from + ((event.clientX - box.left) / box.width) * (to - from));
  };
  return html`<figure class="chart">
    <figcaption>
      <span class="chart-title">${title}${note ? ` · ${note}` : ""}</span>
      <span class="chart-values">
        ${lines.map(
          ({ name, values }, index) => html`<span class="chart-value">
          ${lines.length > 1 && html`<svg class=${`chart-key line-${index}`} viewBox="0 0 24 8" aria-hidden="true"><path d="M0 4H24" /></svg><span class="chart-name">${name}</span>`}
          <strong>${format(values[at] ?? null)}</strong>
        </span>`,
        )}
      </span>
    </figcaption>
    <div class="chart-plot" ref=${plot} onPointerMove=${move} onPointerLeave=${() => onCursor(null)}>
      <svg viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label=${describe(title, lines, format)}>
        <path class="chart-grid" d=${`M0 0H${WIDTH}M0 ${HEIGHT / 2}H${WIDTH}M0 ${HEIGHT}H${WIDTH}`} />
        ${marks.map((time) => html`<path class="chart-mark" d=${`M${x(time)} 0V${HEIGHT}`} />`)}
        ${lines.map(({ values }, index) => {
          const { line, area } = linePath(values, times, { from, to, top });
          return html`${lines.length === 1 && html`<path class="chart-area" d=${area} />`}<path class=${`chart-line line-${index}`} d=${line} />`;
        })}
        ${cursor !== null && at >= 0 && html`<path class="chart-cursor" d=${`M${x(times[at])} 0V${HEIGHT}`} />`}
      </svg>
      <span class="chart-top" aria-hidden="true">${format(top)}</span>
      <span class="chart-time" aria-hidden="true">${at >= 0 ? clock(times[at]) : ""}</span>
    </div>
  </figure>`;
}

function describe(title, lines, format) {
  const texts = lines.map(({ name, values }) => {
    const known = values.filter((value) => value !== null && Number.isFinite(value));
    const now = known.length ? format(known[known.length - 1]) : "no value yet";
    const range = known.length > 1 ? `, from ${format(Math.min(...known))} to ${format(Math.max(...known))}` : "";
    return `${lines.length > 1 ? `${name}: ` : ""}${now}${range}`;
  });
  return `${title}. ${texts.join("; ")}`;
}
