// The theme that the user chose, before the first paint. A classic script: a module would run after it.
(function () {
  try {
    var theme = JSON.parse(localStorage.getItem("portico.theme"));
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch (error) {
    // No storage: the theme of the system.
  }
})();
