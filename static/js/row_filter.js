// A filter field: shows only those table rows in its part of the page that contain the typed text.

/** @param field an input inside the element whose tables it filters; null on a page without a filter */
export function filterRows(field) {
  if (!field) return;
  const home = field.closest(".stack");
  const apply = () => {
    const wanted = field.value.trim().toLowerCase();
    for (const row of home.querySelectorAll("tbody tr")) {
      // The numbers below a chart belong to its lines, so they are not filtered.
      if (!row.closest("[data-numbers]")) row.hidden = !row.textContent.toLowerCase().includes(wanted);
    }
  };
  field.addEventListener("input", apply);
  // A live update replaces tables, so the filter must be applied again.
  new MutationObserver(() => field.value && apply()).observe(home, { childList: true, subtree: true });
}
