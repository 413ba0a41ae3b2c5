/**
 * The stream of all sessions' changes, one for all windows of this browser: a browser opens six connections to a server, for all its windows together.
 *
 * The window that holds the lock reads the stream and passes its frames on. If it is closed, the next one takes over. If it is suspended, as phones do with
 * windows in the background, a window that is looked at takes the lock from it. Without these APIs (plain http on another host than loopback) each window
 * reads the stream itself.
 */
import { AAP, stream } from "./api.js";

const NAME = "portico-updates";
const HEARTBEAT = 5_000;
/** Milliseconds without a heartbeat after which a window that is looked at takes over. */
const SUSPENDED = 12_000;

/**
 * @param {{onReady: () => void, onFrames: (frames: object[]) => void}} callbacks
 * `onReady`: changes before this moment may have been missed, those after it are reported.
 * @returns {() => void} ends it
 */
export function followUpdates({ onReady, onFrames }) {
  const read = (pass) =>
    stream(`${AAP}/updates`, {
      whileHidden: true,
      onFrames(frames) {
        pass(frames);
        handle(frames);
      },
    });
  function handle(frames) {
    if (frames.some((frame) => frame.event === "ready")) onReady();
    const changes = frames.filter((frame) => frame.event !== "ready");
    if (changes.length) onFrames(changes);
  }

  if (!navigator.locks || !window.BroadcastChannel) return read(() => {}).close;

  const channel = new BroadcastChannel(NAME);
  const ended = new AbortController();
  let heard = Date.now();
  let leading = false;

  channel.onmessage = ({ data }) => {
    if (ended.signal.aborted) return;
    if (data === "hello") {
      if (leading) channel.postMessage("heartbeat");
      return;
    }
    heard = Date.now();
    if (Array.isArray(data)) handle(data);
  };

  async function lead() {
    leading = true;
    const source = read((frames) => channel.postMessage(frames));
    const beat = setInterval(() => channel.postMessage("heartbeat"), HEARTBEAT);
    channel.postMessage("heartbeat");
    await new Promise((resolve) => {
      stopLeading = resolve;
      ended.signal.addEventListener("abort", resolve);
    });
    clearInterval(beat);
    source.close();
    leading = false;
  }
  let stopLeading = () => {};

  async function queue(steal) {
    try {
      await navigator.locks.request(NAME, steal ? { steal: true } : { signal: ended.signal }, lead);
    } catch {
      // Another window took the lock, or it ended here.
      stopLeading();
      if (!ended.signal.aborted) queue(false);
    }
  }

  let asked = 0;
  const check = () => {
    if (ended.signal.aborted || leading || document.hidden) return;
    const now = Date.now();
    // After sleep, the leader gets the time of one question to answer.
    if (now - heard > SUSPENDED && asked > heard && now - asked > 1_000) {
      heard = now;
      queue(true);
    } else if (now - heard > SUSPENDED - 2_000 && asked <= heard) {
      asked = now;
      channel.postMessage("hello");
    }
  };
  const watch = setInterval(check, 1_000);

  queue(false);
  // What the leader has read before this window was there is listed.
  onReady();
  return () => {
    clearInterval(watch);
    ended.abort();
    channel.close();
  };
}
