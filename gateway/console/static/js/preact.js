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
