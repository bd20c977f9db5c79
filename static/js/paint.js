// Colours of the style sheet and texts of a training, as plotly takes them. Pure.

/** Every string that names a css variable, replaced by its colour. */
export function resolve(value, colour) {
  if (typeof value === "string") return value.startsWith("--") ? colour(value) : value;
  if (Array.isArray(value)) return value.map((each) => resolve(each, colour));
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, resolve(each, colour)]));
  }
  return value;
}

/** A colour as the browser computes it, the same with an opacity. */
export function faded(rgb, opacity) {
  const parts = rgb.match(/[\d.]+/g) ?? [];
  return parts.length >= 3 ? `rgba(${parts.slice(0, 3).join(", ")}, ${opacity})` : rgb;
}

// plotly reads a subset of HTML in names: what a user called a phase must not become markup.
export function escapeHtml(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}
