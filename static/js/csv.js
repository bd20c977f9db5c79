// The numbers of a chart as a table with one row per x. Does not access the page.

// Positions where a spreadsheet would see a formula: at the start of a text, or after a cell separator other than the
// comma, as used by Excel in most of Europe, which then ignores quotes as well. Excel also accepts the full-width signs
// of Chinese and Japanese text. `run_export.py` of the server has the same pattern.
const FORMULA = /(^(?=[\t\r\n])|(?:^|[;|\t\r\n])(?=[\s"']*[=+\-@＝＋－＠]))/g;

const cell = (value) => {
  const given = value === null || value === undefined ? "" : String(value);
  const text = typeof value === "string" ? given.replace(FORMULA, "$1'") : given;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};

/** Returns the CSV text. Column titles contain the unit; missing values stay empty, never zero. */
export function chartToCsv(chart) {
  const lines = chart.lines;
  const xs = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  const columns = lines.map((line) => new Map(line.x.map((x, i) => [x, line.y[i]])));
  const header = [chart.x_title, ...lines.map((line) => `${lineTitle(chart, line)} [${chart.unit}]`)];
  const rows = xs.map((x) => [x, ...columns.map((column) => column.get(x))]);
  return [header, ...rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

function lineTitle(chart, line) {
  const group = chart.groups.find((each) => each.id === line.group);
  return group ? `${group.label}: ${line.name}` : line.name;
}
