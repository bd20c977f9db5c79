// A classic script in the head, so that the selected theme applies before the first paint.
try {
  const chosen = localStorage.getItem("leakline.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // Storage is blocked, so the page follows the system's theme.
}
