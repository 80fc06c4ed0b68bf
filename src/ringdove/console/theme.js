// Chooses light or dark before anything is drawn.
(() => {
  const chosen = localStorage.getItem("ringdove-theme");
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = chosen || (dark ? "dark" : "light");
})();
