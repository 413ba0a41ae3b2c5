/** The components that all parts of the console share. */
export { Icon } from "./icon.js";
export { Button, IconButton, CopyButton, copyText } from "./button.js";
export { Menu, place } from "./menu.js";
export { Dialog } from "./dialog.js";
export { toast, Toasts } from "./toast.js";
export { Tabs, Select, Splitter, Empty, Spinner, PaneHeader } from "./controls.js";
export { timeAgo, TimeAgo, useNow } from "./time.js";
