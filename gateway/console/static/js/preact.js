/** Preact, its hooks and the `html` template tag of htm, from the vendored file. */
export {
  h,
  html,
  render,
  Component,
  createContext,
  useState,
  useReducer,
  useEffect,
  useLayoutEffect,
  useRef,
  useImperativeHandle,
  useMemo,
  useCallback,
  useContext,
  useErrorBoundary,
} from "../vendor/htm-preact.js";

import { Component as Base, h as element } from "../vendor/htm-preact.js";

/** The component, which is rendered again only if one of its properties is another one. */
export function memo(component) {
  return class Memo extends Base {
    shouldComponentUpdate(next) {
      const before = this.props;
      const names = Object.keys(next);
      return names.length !== Object.keys(before).length || names.some((name) => next[name] !== before[name]);
    }
    render(props) {
      return element(component, props);
    }
  };
}
