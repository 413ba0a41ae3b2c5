/** Edits of files as lines: what each CLI reports of an edit becomes the same hunks. No DOM. */

const MAX_CELLS = 4_000_000;
const MAX_TEXT = 400_000;

/**
 * @typedef {{type: " "|"+"|"-", text: string, old: number|null, new: number|null}} DiffLine
 * @typedef {{lines: DiffLine[], header?: string}} Hunk  Line numbers are null where they are not known.
 * @typedef {{path: string, movedTo?: string, kind: "add"|"write"|"replace"|"update"|"delete", hunks: Hunk[], added: number, removed: number, note?: string, incomplete?: boolean}} Change
 *   `write`: the whole text of a file, which may exist; `replace`: of one that exists. `incomplete`: the hunks are not all of it.
 * @typedef {{path: string, exists?: boolean, text?: string, size?: number, modified?: string, problem?: string}} DiskFile  as `GET /sessions/ID/calls/CALL/files` has it.
 */

/** The lines of a text. A carriage return before a line feed belongs to its line: a change of it is a change. */
function linesOf(text) {
  const lines = String(text).split("\n");
  if (lines.length > 1 && lines[lines.length - 1] === "") lines.pop();
  return lines;
}

/**
 * The lines of two texts, as kept, removed and added ones: `[[" "|"-"|"+", text]]`. Common lines are found by the longest common
 * subsequence; of texts too large for that, all that differs is one removal and one addition.
 */
export function compareLines(before, after) {
  const old = before === "" ? [] : linesOf(before);
  const now = after === "" ? [] : linesOf(after);
  let head = 0;
  while (head < old.length && head < now.length && old[head] === now[head]) head += 1;
  let tail = 0;
  while (tail < old.length - head && tail < now.length - head && old[old.length - 1 - tail] === now[now.length - 1 - tail]) tail += 1;
  const left = old.slice(head, old.length - tail);
  const right = now.slice(head, now.length - tail);
  return [
    ...old.slice(0, head).map((text) => [" ", text]),
    ...common(left, right),
    ...old.slice(old.length - tail).map((text) => [" ", text]),
  ];
}

function common(left, right) {
  const [m, n] = [left.length, right.length];
  if (!m || !n || m * n > MAX_CELLS) return [...left.map((text) => ["-", text]), ...right.map((text) => ["+", text])];
  const width = n + 1;
  const lengths = new Uint32Array((m + 1) * width);
  for (let i = m - 1; i >= 0; i -= 1) {
    for (let j = n - 1; j >= 0; j -= 1) {
      lengths[i * width + j] =
        left[i] === right[j] ? lengths[(i + 1) * width + j + 1] + 1 : Math.max(lengths[(i + 1) * width + j], lengths[i * width + j + 1]);
    }
  }
  const found = [];
  let i = 0;
  let j = 0;
  while (i < m && j < n) {
    if (left[i] === right[j]) {
      found.push([" ", left[i]]);
      i += 1;
      j += 1;
    } else if (lengths[(i + 1) * width + j] >= lengths[i * width + j + 1]) {
      found.push(["-", left[i]]);
      i += 1;
    } else {
      found.push(["+", right[j]]);
      j += 1;
    }
  }
  while (i < m) found.push(["-", left[i++]]);
  while (j < n) found.push(["+", right[j++]]);
  return found;
}

function numbered(marked, oldStart, newStart) {
  let old = oldStart;
  let now = newStart;
  return marked.map(([type, text]) => {
    // What a diff says about the line before, such as that it has no line feed, has no number.
    if (type === "\\") return { type: " ", text, old: null, new: null };
    return { type, text, old: type === "+" || old == null ? null : old++, new: type === "-" || now == null ? null : now++ };
  });
}

/** Long stretches of unchanged lines are left out: three lines stay around each change. */
function withContext(lines, context = 3) {
  const near = new Uint8Array(lines.length);
  lines.forEach((line, index) => {
    if (line.type === " ") return;
    near.fill(1, Math.max(0, index - context), Math.min(lines.length, index + context + 1));
  });
  const hunks = [];
  let current = null;
  lines.forEach((line, index) => {
    if (!near[index]) current = null;
    else {
      if (!current) hunks.push((current = { lines: [] }));
      current.lines.push(line);
    }
  });
  return hunks;
}

/** The hunks between two texts. `line` is the number of their first line, null if it is not known. */
function hunksBetween(before, after, line) {
  if (before.length + after.length > MAX_TEXT) return null;
  return withContext(numbered(compareLines(before, after), line, line));
}

function change(path, kind, hunks, extra = {}) {
  let added = 0;
  let removed = 0;
  for (const hunk of hunks ?? []) {
    for (const line of hunk.lines) {
      if (line.type === "+") added += 1;
      else if (line.type === "-") removed += 1;
    }
  }
  return { path: String(path || "file"), kind, hunks: hunks ?? [], added, removed, ...extra };
}

function between(path, before, after, line, kind) {
  const hunks = hunksBetween(before, after, line);
  const note = hunks ? undefined : `Too large to compare: ${before.length} characters become ${after.length}.`;
  return change(path, kind ?? "update", hunks, note ? { note, incomplete: true } : {});
}

const FILE_HEADER = /^(?:---|\+\+\+|diff|index) /;
/** Headers that change more than lines. */
const OTHER_HEADER = /^(?:new file|deleted file|rename|similarity|copy|old mode|new mode) /;

/** A file of a worktree with the text of `git diff` of it. */
export function changeOfGit(file, { diff, truncated }) {
  const kind = { added: "add", deleted: "delete" }[file.status] ?? "update";
  // The headers of git end with the first hunk: a removed line may look like one.
  const at = diff.search(/^@@ /m);
  const note = at < 0 ? "Git shows no lines of this file." : truncated ? "The diff is cut after 1 MiB." : undefined;
  const moved = file.oldPath ? { movedTo: file.path } : {};
  return change(file.oldPath ?? file.path, kind, at < 0 ? [] : hunksOfUnified(diff.slice(at)), { ...moved, ...(note ? { note } : {}) });
}

/** The hunks of a unified diff; of one without line numbers (`@@` alone, as in apply_patch), they have none. */
export function hunksOfUnified(text) {
  const hunks = [];
  let lines = null;
  let old = null;
  let now = null;
  let header;
  const close = () => {
    if (lines?.length) hunks.push({ lines: numbered(lines, old, now), ...(header ? { header } : {}) });
  };
  for (const line of linesOf(text)) {
    const found = /^@@(?: -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@)?([^]*)$/.exec(line);
    if (found) {
      close();
      lines = [];
      [old, now] = found[1] === undefined ? [null, null] : [Number(found[1]), Number(found[2])];
      header = found[3].trim();
    } else if (lines === null && (FILE_HEADER.test(line) || OTHER_HEADER.test(line))) {
      continue;
    } else {
      lines ??= [];
      if (line.startsWith("\\")) lines.push(["\\", line]);
      else lines.push(/^[-+ ]/.test(line) ? [line[0], line.slice(1)] : [" ", line]);
    }
  }
  close();
  return hunks;
}

/** The change of a file by the text of a unified diff. */
function ofUnified(path, kind, text, extra = {}) {
  const head = text.slice(0, Math.max(0, text.search(/^@@/m)));
  const incomplete = head.split("\n").some((line) => OTHER_HEADER.test(line));
  return change(path, kind, hunksOfUnified(text), { ...extra, ...(incomplete ? { incomplete } : {}) });
}

function looksUnified(text) {
  return /^@@/m.test(text) || /^--- /m.test(text);
}

/** The files of a patch of apply_patch ("*** Begin Patch"). */
function filesOfPatch(text) {
  const files = [];
  let current = null;
  for (const line of linesOf(text)) {
    // Not `.`, which leaves out some separators of lines that a path may have.
    const found = /^\*\*\* (Add|Update|Delete) File: ([^]*)$/.exec(line);
    const moved = /^\*\*\* Move to: ([^]*)$/.exec(line);
    if (found) files.push((current = { kind: found[1].toLowerCase(), path: found[2].trim(), lines: [] }));
    else if (moved && current) current.movedTo = moved[1].trim();
    else if (!line.startsWith("*** ") && current) current.lines.push(line);
  }
  return files.map((file) => {
    const hunks = file.lines.length ? hunksOfUnified(file.lines.join("\n")) : [];
    const after = file.kind === "add" ? file.lines.map((line) => `${line.replace(/^\+/, "")}\n`).join("") : undefined;
    return { ...change(file.path, file.kind, hunks, file.movedTo ? { movedTo: file.movedTo } : {}), after };
  });
}

function ofListed(given) {
  const path = given.path ?? given.file_path;
  if (typeof path !== "string") return null;
  const kind = given.kind === "add" || given.kind === "delete" ? given.kind : "update";
  const extra = typeof given.move_path === "string" ? { movedTo: given.move_path } : {};
  if (typeof given.diff !== "string") {
    const before = given.old_text ?? given.oldText;
    const after = given.new_text ?? given.newText ?? given.content;
    if (typeof after !== "string") return change(path, kind, [], extra);
    return before == null ? { ...between(path, "", after, 1, "add"), after } : between(path, before, after, before ? null : 1, kind);
  }
  // codex has the whole text of an added or a deleted file as its diff, without marks.
  if (kind !== "update" && !looksUnified(given.diff)) {
    const texts = kind === "add" ? ["", given.diff] : [given.diff, ""];
    return { ...between(path, texts[0], texts[1], 1, kind), ...extra, ...(kind === "add" ? { after: given.diff } : {}) };
  }
  return ofUnified(path, kind, given.diff, extra);
}

/** Hunks that a CLI has reported of an edit that is done (`FileChange`), joined by file. */
function ofReported(changes) {
  const files = new Map();
  for (const part of changes) {
    const known = files.get(part.path) ?? { kind: part.old_text == null ? "add" : "update", hunks: [], shift: 0 };
    const line = Number.isInteger(part.line) ? part.line : part.old_text == null ? 1 : null;
    const hunks = hunksBetween(part.old_text ?? "", part.new_text ?? "", line) ?? [];
    // `line` counts in the changed file: in the file before, the same line has the number without what was added above.
    for (const one of hunks.flatMap((hunk) => hunk.lines)) {
      if (one.old != null) one.old -= known.shift;
    }
    for (const one of hunks.flatMap((hunk) => hunk.lines)) known.shift += one.type === "+" ? 1 : one.type === "-" ? -1 : 0;
    known.hunks.push(...hunks);
    files.set(part.path, known);
  }
  return [...files].map(([path, { kind, hunks }]) => change(path, kind, hunks));
}

const text = (value) => (typeof value === "string" ? value : "");

/**
 * The changes of files that a tool call makes.
 * @param {string} name the tool's name
 * @param {any} input its input, as far as it is known
 * @param {Array} [reported] `changes` of its result, with line numbers where the CLI has them
 * @returns {Change[]} empty if it is no edit
 */
export function changesOfCall(name, input, reported = []) {
  if (Array.isArray(reported) && reported.length) return ofReported(reported);
  return comparableChanges(name, input).map(({ after, edits, cell, ...shown }) => shown);
}

/**
 * As `changesOfCall`, with what `changesOnDisk` needs to compare: `after` is the whole new text of a file, `edits` are
 * replacements of parts, `cell` is what happens to the cell of a notebook.
 */
function comparableChanges(name, input) {
  if (typeof input === "string") return input.includes("*** Begin Patch") ? filesOfPatch(input) : [];
  if (!input || typeof input !== "object") return [];
  if (Array.isArray(input.changes)) return input.changes.filter((one) => one && typeof one === "object").map(ofListed).filter(Boolean);
  const patch = [input.patch, input.input].find((value) => typeof value === "string" && value.includes("*** Begin Patch"));
  if (patch) return filesOfPatch(patch);
  const path = input.file_path ?? input.path ?? input.notebook_path ?? input.filename;
  if (typeof path !== "string" || !path) return [];
  if (typeof input.diff === "string" && input.diff) return [ofListed({ path, kind: looksUnified(input.diff) ? "update" : "add", diff: input.diff })];
  const edits = Array.isArray(input.edits) ? input.edits : "old_string" in input || "old_str" in input || "old_text" in input ? [input] : null;
  if (edits) {
    const hunks = [];
    let large = 0;
    for (const edit of edits) {
      const found = hunksBetween(text(edit?.[fieldOf(edit, OLD)]), text(edit?.[fieldOf(edit, NEW)]), null);
      if (!found) large += 1;
      else hunks.push(...found);
    }
    const notes = [input.replace_all && "Replaces every occurrence.", large && `${large} of ${edits.length} edits are too large to compare.`];
    const note = notes.filter(Boolean).join(" ");
    const replaced = edits.map((edit) => ({
      before: text(edit?.[fieldOf(edit, OLD)]),
      after: text(edit?.[fieldOf(edit, NEW)]),
      all: Boolean(edit?.replace_all ?? input.replace_all),
    }));
    return [{ ...change(path, "update", hunks, { ...(note ? { note } : {}), ...(large ? { incomplete: true } : {}) }), edits: replaced }];
  }
  if (typeof input.notebook_path === "string" && typeof input.new_source === "string") {
    const cell = { id: text(input.cell_id), mode: text(input.edit_mode) || "replace", after: input.new_source };
    return [{ ...between(path, "", cell.after, null, "update"), note: cellNote(cell), cell }];
  }
  const written = writtenField(name, input);
  return written ? [{ ...between(path, "", input[written], 1, "write"), after: input[written] }] : [];
}

const cellNote = ({ id, mode }) => `${{ insert: "A new cell after", delete: "Deletes" }[mode] ?? "The new text of"} the cell ${id || "without an id"}.`;
const noted = (one, ...notes) => ({ ...one, note: [one.note, ...notes].filter(Boolean).join(" ") });

/**
 * The changes of files that a call makes to what is on the disk.
 * @param {DiskFile[]} files what is on the disk; a file that is not among them is not known
 * @returns {Change[]}
 */
export function changesOnDisk(name, input, files) {
  const disk = new Map(files.map((file) => [file.path, file]));
  return comparableChanges(name, input).map((one) => {
    const { after, edits, cell, ...shown } = onDisk(one, disk.get(one.path) ?? {});
    const target = shown.movedTo && disk.get(shown.movedTo);
    if (target && target.exists !== false) return noted(shown, target.exists ? "Replaces the file at the new path." : "What is at the new path now is not known.");
    return shown;
  });
}

function onDisk(one, file) {
  if (file.exists === undefined) {
    const words = one.after === undefined ? "What is there now is not known" : "What is there now is not known, and is replaced";
    return noted({ ...one, ...(one.kind === "add" ? { kind: "write" } : {}) }, `${words}${file.problem ? `: ${file.problem}` : ""}.`);
  }
  if (one.after !== undefined) return writtenOver(one, file);
  if (!file.exists) {
    if (one.edits?.every((edit) => edit.before === "")) return { ...one, kind: "add" };
    return noted(one, "There is no such file.");
  }
  if (file.text === undefined) return one.edits || one.cell ? noted(one, `What is there now is not shown: ${file.problem}.`) : one;
  if (one.kind === "delete") return between(one.path, file.text, "", 1, "delete");
  if (one.cell) return cellOnDisk(one, file.text);
  return one.edits ? editedOnDisk(one, file.text) : one;
}

/** A file with a whole new text. */
function writtenOver(one, file) {
  if (!file.exists) return { ...one, kind: "add" };
  if (file.text === undefined) return noted({ ...one, kind: "replace" }, `The file of ${file.size} bytes that is there now is not shown: ${file.problem}.`);
  return { ...compared(one.path, file.text, one.after, "replace"), ...(one.movedTo ? { movedTo: one.movedTo } : {}) };
}

function compared(path, before, after, kind) {
  const shown = between(path, before, after, 1, kind);
  if (before === after) return noted(shown, "The file has this text already.");
  const [had, has] = [before, after].map((one) => one === "" || one.endsWith("\n"));
  return had === has ? shown : noted(shown, has ? "The line feed at the end is new." : "The line feed at the end is removed.");
}

function editedOnDisk(one, before) {
  let after = before;
  const counts = [];
  for (const [at, edit] of one.edits.entries()) {
    const parts = edit.before === "" ? [] : after.split(edit.before);
    const times = parts.length - 1;
    const which = one.edits.length > 1 ? ` of edit ${at + 1}` : "";
    if (times < 1) return noted(one, `The old text${which} is not in the file.`);
    if (times > 1 && !edit.all) return noted(one, `The old text${which} is in the file ${times} times.`);
    if (edit.all) counts.push(`Replaces ${times === 1 ? "one occurrence" : `all ${times} occurrences`}${which}.`);
    after = parts.join(edit.after);
  }
  const shown = compared(one.path, before, after, "update");
  // The old and the new texts can be compared although the file is too large for that.
  return shown.incomplete ? noted(one, ...counts) : noted(shown, ...counts);
}

function cellOnDisk(one, notebook) {
  let cells;
  try {
    cells = JSON.parse(notebook).cells;
  } catch {
    cells = null;
  }
  if (!Array.isArray(cells)) return noted(one, "The file is not a notebook.");
  const { id, mode, after } = one.cell;
  if (mode === "insert") return one;
  const numbered = /^cell-(\d+)$/.exec(id);
  const cell = cells.find((other) => id && other?.id === id) ?? (numbered ? cells[Number(numbered[1])] : undefined);
  if (!cell) return noted(one, "The notebook has no such cell.");
  const source = Array.isArray(cell.source) ? cell.source.join("") : text(cell.source);
  return { ...between(one.path, source, mode === "delete" ? "" : after, null, "update"), note: one.note };
}

const OLD = ["old_string", "old_str", "old_text", "oldText"];
const NEW = ["new_string", "new_str", "new_text", "newText"];
const LISTED = ["path", "file_path", "kind", "move_path"];

const fieldOf = (given, names) => names.find((name) => given?.[name] !== undefined && given[name] !== null);

function writtenField(name, input) {
  const isWrite = /write|create|note|edit/i.test(String(name ?? ""));
  return isWrite ? ["content", "new_source", "text", "file_text"].find((field) => typeof input[field] === "string") : undefined;
}

/**
 * The fields of a call's input that its changes show in whole. Whoever approves the call must see all others beside the changes.
 * @param {Change[]} changes those of `changesOfCall` for the same name and input
 * @returns {string[]}
 */
export function fieldsInChanges(name, input, changes) {
  if (!changes.length || !input || typeof input !== "object" || changes.some((one) => one.incomplete)) return [];
  const only = (given, fields) => given && Object.keys(given).every((field) => fields.includes(field));
  if (Array.isArray(input.changes)) {
    const isShown = (one) => only(one, typeof one?.diff === "string" ? [...LISTED, "diff"] : [...LISTED, "old_text", "new_text"]);
    return changes.length === input.changes.length && input.changes.every(isShown) ? ["changes"] : [];
  }
  const shown = (given) => [fieldOf(given, OLD), fieldOf(given, NEW)].filter(Boolean);
  if (Array.isArray(input.edits)) return input.edits.every((edit) => only(edit, shown(edit))) ? ["edits"] : [];
  if (typeof input.diff === "string" && input.diff) return ["diff"];
  if (["old_string", "old_str", "old_text"].some((field) => field in input)) return shown(input);
  return [writtenField(name, input)].filter(Boolean);
}

/** The pairs of a side-by-side view: `[left|null, right|null]`, removed lines beside the added ones that replace them. */
export function pairsOf(lines) {
  const pairs = [];
  let removed = [];
  let added = [];
  const flush = () => {
    for (let at = 0; at < Math.max(removed.length, added.length); at += 1) pairs.push([removed[at] ?? null, added[at] ?? null]);
    removed = [];
    added = [];
  };
  for (const line of lines) {
    if (line.type === "-") removed.push(line);
    else if (line.type === "+") added.push(line);
    else {
      flush();
      pairs.push([line, line]);
    }
  }
  flush();
  return pairs;
}

/** The part of a line that differs from its counterpart: `[start, end]` in each, or null where too much differs to be of use. */
export function differing(left, right) {
  let start = 0;
  while (start < left.length && start < right.length && left[start] === right[start]) start += 1;
  let end = 0;
  while (end < left.length - start && end < right.length - start && left[left.length - 1 - end] === right[right.length - 1 - end]) end += 1;
  const same = start + end;
  // Whole words are easier to read than parts of them.
  const inWord = (at) => /\w/.test(left[at] ?? "") || /\w/.test(right[at] ?? "");
  while (start > 0 && inWord(start) && /\w/.test(left[start - 1])) start -= 1;
  while (end > 0 && /\w/.test(left[left.length - end]) && (/\w/.test(left[left.length - end - 1] ?? "") || /\w/.test(right[right.length - end - 1] ?? ""))) end -= 1;
  if (same === 0 || same < Math.max(left.length, right.length) * 0.3) return null;
  return [
    [start, left.length - end],
    [start, right.length - end],
  ];
}
