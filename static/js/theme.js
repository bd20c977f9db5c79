// A classic script in the head, so that a chosen theme is there before the first paint.
try {
  const chosen = localStorage.getItem("leakline.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // The browser keeps nothing for this page: it follows the system.
}
