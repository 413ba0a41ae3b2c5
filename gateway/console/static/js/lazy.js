/** Components that are loaded when they are first shown. */
import { connection } from "./api.js";
import { html, useEffect, useState } from "./preact.js";
import { Button, Empty, Spinner } from "./ui/index.js";

const prefetched = [];
let prefetching = false;

/** Loads all of them, so that they are there when the daemon is not. */
export function prefetch() {
  prefetching = true;
  for (const fetchIt of prefetched) fetchIt().catch(() => {});
}

/**
 * A component of another module. Until it is there, `waiting` is shown (by default a spinner, `null` for nothing).
 * @param {() => Promise<object>} load such as `() => import("./pages/keys.js")`
 * @param {string} name of the export
 */
export function lazy(load, name, { waiting } = {}) {
  let promise = null;
  let component = null;
  const fetchIt = () =>
    (promise ??= load().then(
      (module) => {
        component = module[name];
        if (!component) throw new Error(`the module has no ${name}`);
      },
      (failure) => {
        promise = null;
        throw failure;
      },
    ));
  prefetched.push(fetchIt);
  // A part of a part that was loaded already.
  if (prefetching) fetchIt().catch(() => {});
  return function Lazy(props) {
    const [, render] = useState(0);
    const [error, setError] = useState(null);
    useEffect(() => {
      // The module may have come between the rendering and this effect: then this renders what it has brought.
      let here = true;
      const begin = () =>
        fetchIt().then(
          () => here && render(1),
          (failure) => {
            console.warn(`${name} was not loaded:`, failure);
            if (here) setError(failure);
          },
        );
      begin();
      const end = connection.subscribe((state) => state === "online" && !component && begin());
      return () => {
        here = false;
        end();
      };
    }, []);
    if (component) return html`<${component} ...${props} />`;
    if (error && waiting === null) return null;
    if (error) {
      return html`<${Empty} icon="warning" title="This part of the page was not loaded." action=${html`<${Button} onClick=${() => location.reload()}>Reload</${Button}>`} />`;
    }
    return waiting === undefined ? html`<div class="page-loading"><${Spinner} /></div>` : waiting;
  };
}
