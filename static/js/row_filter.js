// A field that keeps, of all tables around it, the rows that hold what is typed.

/** @param field an input inside the element whose tables it filters; null where a page has none */
export function filterRows(field) {
  if (!field) return;
  const home = field.closest(".stack");
  const apply = () => {
    const wanted = field.value.trim().toLowerCase();
    for (const row of home.querySelectorAll("tbody tr")) {
      // The numbers below a chart are those of its lines.
      if (!row.closest("[data-numbers]")) row.hidden = !row.textContent.toLowerCase().includes(wanted);
    }
  };
  field.addEventListener("input", apply);
  // A live update replaces tables.
  new MutationObserver(() => field.value && apply()).observe(home, { childList: true, subtree: true });
}
