/** Fuzzy matching: the letters of what was typed, in their order. */

/**
 * How well `text` matches `wanted`, a number of at least 0, or null if a letter is missing. Letters at the beginning of words and next to each other count
 * more. The words of `wanted`, divided by spaces, may be in any order.
 */
export function score(text, wanted) {
  const hay = text.toLowerCase();
  let total = 0;
  for (const word of wanted.toLowerCase().split(/\s+/).filter(Boolean)) {
    const one = wordScore(hay, word);
    if (one === null) return null;
    total += one;
  }
  return total;
}

const SEPARATOR = /[\s/\\_.:,-]/;

function wordScore(hay, word) {
  const at = hay.indexOf(word);
  if (at >= 0) return word.length * 4 + (at === 0 || SEPARATOR.test(hay[at - 1]) ? 12 : 4) - at / 1000;
  let total = 0;
  let position = -1;
  for (const letter of word) {
    const next = hay.indexOf(letter, position + 1);
    if (next < 0) return null;
    if (next === position + 1) total += 2;
    else if (next === 0 || SEPARATOR.test(hay[next - 1])) total += 3;
    else total -= Math.min(1, (next - position) / 50);
    position = next;
  }
  return Math.max(0, total);
}
