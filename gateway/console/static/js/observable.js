/** A value that can be watched. */
import { useLayoutEffect, useReducer } from "./preact.js";

/**
 * @template T
 * @param {T} initial
 * @returns {{value: T, subscribe: (listener: (value: T) => void) => () => void, changed: () => void}}
 * Setting `value` to another value calls the listeners; `changed()` calls them after the value was changed in place.
 * `subscribe` returns a function that ends the subscription.
 */
export function observable(initial) {
  let current = initial;
  const listeners = new Set();
  const changed = () => {
    for (const listener of [...listeners]) listener(current);
  };
  return {
    get value() {
      return current;
    },
    set value(next) {
      if (Object.is(next, current)) return;
      current = next;
      changed();
    },
    subscribe(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    changed,
  };
}

/** The value of an observable; the component is rendered again when it changes. */
export function useObservable(source) {
  return useSelected(source, (value) => value, true);
}

/**
 * A part of an observable's value; the component is rendered again only if the part is another one.
 * With `always` also when the value was changed in place.
 */
export function useSelected(source, select, always = false) {
  const [, render] = useReducer((n) => n + 1, 0);
  const selected = select(source.value);
  // With the rendering, not after the next frame: until then a key that opens a dialog would show nothing, and the next key would be lost.
  useLayoutEffect(() => {
    let last = selected;
    const update = (value) => {
      const next = select(value);
      if (!always && Object.is(next, last)) return;
      last = next;
      render();
    };
    // The value may have changed between the rendering and this effect.
    if (!Object.is(select(source.value), last)) update(source.value);
    return source.subscribe(update);
  }, [source, select]);
  return selected;
}

const personal = [];

/** Forget what `stored` keeps of the person who signs out. */
export function forgetStored() {
  for (const forget of personal) forget();
}

/**
 * An observable whose value is kept in localStorage under `key`, in step between the windows of this browser. What is of the
 * person who is signed in, and not of the browser, is `ofPerson`: it is forgotten when they sign out.
 */
export function stored(key, initial, { ofPerson = false } = {}) {
  const read = () => {
    try {
      const text = localStorage.getItem(key);
      return text === null ? initial : JSON.parse(text);
    } catch {
      return initial;
    }
  };
  const source = observable(read());
  let foreign = false;
  source.subscribe((value) => {
    if (foreign) return;
    try {
      localStorage.setItem(key, JSON.stringify(value));
    } catch {
      // Storage is full or switched off: the value lasts as long as the page.
    }
  });
  addEventListener("storage", (event) => {
    if (event.key !== key && event.key !== null) return;
    foreign = true;
    source.value = read();
    foreign = false;
  });
  if (ofPerson) {
    personal.push(() => {
      source.value = initial;
      localStorage.removeItem(key);
    });
  }
  return source;
}
