/** The geometry of line charts. Pure: numbers in, numbers and path texts out. */

/** Width and height of a chart's own coordinates; it is stretched to its place. */
export const WIDTH = 600;
export const HEIGHT = 100;

/**
 * The smallest of 1, 2, 2.5 and 5 times a power of ten that is at least a value: the end of an axis.
 * @param {number} value
 * @returns {number} 1 for what is not positive
 */
export function niceCeiling(value) {
  if (!(value > 0) || !Number.isFinite(value)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  // Divided by a power of ten, 0.3 is 2.9999999999999996.
  const step = [1, 2, 2.5, 5, 10].find((multiple) => multiple * power >= value * (1 - 1e-12)) ?? 10;
  return Number((step * power).toPrecision(12));
}

/**
 * The path of a line. Missing values interrupt it; a value between two missing ones is a short dash.
 * @param {(number | null)[]} values
 * @param {number[]} times in the unit of `from` and `to`
 * @param {{from: number, to: number, top: number}} range
 * @returns {{line: string, area: string}} `area` is closed down to zero
 */
export function linePath(values, times, { from, to, top }) {
  const x = (time) => round(((time - from) / (to - from || 1)) * WIDTH);
  const y = (value) => round(HEIGHT - (Math.min(value, top) / (top || 1)) * HEIGHT);
  const line = [];
  const area = [];
  for (const run of runs(values)) {
    const points = run.map((index) => [x(times[index]), y(values[index])]);
    if (points.length === 1) points.push([round(points[0][0] + 2), points[0][1]]);
    const path = points.map(([px, py], index) => `${index ? "L" : "M"}${px} ${py}`).join("");
    line.push(path);
    area.push(`${path}L${points[points.length - 1][0]} ${HEIGHT}L${points[0][0]} ${HEIGHT}Z`);
  }
  return { line: line.join(""), area: area.join("") };
}

/** The indexes of values in a row that are not missing. */
function runs(values) {
  const found = [];
  let current = [];
  values.forEach((value, index) => {
    if (value !== null && Number.isFinite(value)) current.push(index);
    else if (current.length) {
      found.push(current);
      current = [];
    }
  });
  if (current.length) found.push(current);
  return found;
}

/**
 * The index of the time that is nearest to another.
 * @param {number[]} times ascending
 * @param {number} time
 * @returns {number} -1 if there are none
 */
export function nearest(times, time) {
  let best = -1;
  for (let index = 0; index < times.length; index++) {
    if (best < 0 || Math.abs(times[index] - time) <= Math.abs(times[best] - time)) best = index;
  }
  return best;
}

function round(value) {
  return Math.round(value * 100) / 100;
}
