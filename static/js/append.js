// Appends new snapshots of the stream to the lines of a chart. Pure.

/** Returns the value of a line for a row: the sum of its samples, or null if none was measured. */
export function valueOf(source, samples) {
  const values = source.names.map((name) => samples[name]).filter((value) => value !== null && value !== undefined);
  return values.length ? values.reduce((sum, value) => sum + value, 0) : null;
}

const fits = (source, process, row) =>
  source.process === process && source.phase === row.phase && (source.kind === null || source.kind === row.kind);

/** Adds the rows to the chart in place. Returns true if a line changed. */
export function appendRows(chart, process, rows, startedAt) {
  let changed = false;
  for (const row of rows) {
    const x = chart.x_unit === "generation" ? row.generation : (row.time - startedAt) / chart.x_seconds;
    if (x === null || x === undefined) continue;
    for (const line of chart.lines) {
      if (!line.source || !fits(line.source, process, row)) continue;
      const y = valueOf(line.source, row.samples);
      if (y !== null) changed = put(line, x, y) || changed;
    }
  }
  return changed;
}

function put(line, x, y) {
  const last = line.x.length - 1;
  // The stream may repeat points that the page already has, so older ones are ignored.
  if (last >= 0 && x < line.x[last]) return false;
  if (last >= 0 && x === line.x[last]) {
    if (line.y[last] === y) return false;
    line.y[last] = y;
  } else {
    line.x.push(x);
    line.y.push(y);
    line.low?.push(y);
    line.high?.push(y);
  }
  return true;
}

/** Returns the series names that the stream must send for these charts to grow. */
export function wantedNames(charts) {
  const sources = charts.flatMap((chart) => chart.lines).map((line) => line.source).filter(Boolean);
  return [...new Set(sources.flatMap((source) => source.names))];
}
