// A classic script in the head, so that a chosen theme is there before the first paint.
{
  const chosen = localStorage.getItem("leakline.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
