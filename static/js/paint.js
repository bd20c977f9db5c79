// Colours and texts in the form that plotly expects. Pure.

/** Replaces every string that names a CSS variable with the variable's colour. */
export function resolve(value, colour) {
  if (typeof value === "string") return value.startsWith("--") ? colour(value) : value;
  if (Array.isArray(value)) return value.map((each) => resolve(each, colour));
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, resolve(each, colour)]));
  }
  return value;
}

/** Adds an opacity to a computed colour. */
export function faded(rgb, opacity) {
  const parts = rgb.match(/[\d.]+/g) ?? [];
  return parts.length >= 3 ? `rgba(${parts.slice(0, 3).join(", ")}, ${opacity})` : rgb;
}

// plotly interprets a subset of HTML in names; user-defined names must not become markup.
export function escapeHtml(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}
