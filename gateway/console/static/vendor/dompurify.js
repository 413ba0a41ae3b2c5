// The released file is a script for any environment; in a module it sets a global variable, which this exports.
import "./purify.min.js";

export default globalThis.DOMPurify;
