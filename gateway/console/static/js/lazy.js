/** Components that are loaded when they are first shown. */
import { html, useEffect, useState } from "./preact.js";
import { Button, Empty, Spinner } from "./ui/index.js";

/**
 * A component of another module. Until it is there, `waiting` is shown (by default a spinner, `null` for nothing).
 * @param {() => Promise<object>} load such as `() => import("./pages/keys.js")`
 * @param {string} name of the export
 */
export function lazy(load, name, { waiting } = {}) {
  let promise = null;
  let component = null;
  return function Lazy(props) {
    const [, render] = useState(0);
    const [error, setError] = useState(null);
    const fetchIt = () => {
      promise ??= load().then(
        (module) => {
          component = module[name];
          if (!component) throw new Error(`the module has no ${name}`);
        },
      );
      promise.then(
        () => render(1),
        (failure) => {
          promise = null;
          setError(failure);
        },
      );
    };
    useEffect(() => {
      if (!component) fetchIt();
    }, []);
    if (component) return html`<${component} ...${props} />`;
    if (error && waiting === null) return null;
    if (error) {
      console.warn(`${name} was not loaded:`, error);
      return html`<${Empty} icon="warning" title="This part of the page was not loaded." action=${html`<${Button} onClick=${() => location.reload()}>Reload</${Button}>`} />`;
    }
    return waiting === undefined ? html`<div class="page-loading"><${Spinner} /></div>` : waiting;
  };
}
