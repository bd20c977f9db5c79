// The state of a run for the live mark: a page may be connected to a run that sends nothing. Does not access the page.

export const WORDS = {
  live: "Live", closed: "Not connected", disconnected: "Disconnected", ended: "Ended", failed: "Failed", killed: "Killed",
  interrupted: "Interrupted", silent: "Silent", late: "No data",
};
// A live client sends at least every ten seconds (REPORT_EVERY_SECONDS in background_readings.py), plus transfer time.
// If the newest data is older than this, two of these messages in a row are missing.
const LATE_SECONDS = 22;
const ENDS = { finished: "ended", failed: "failed", interrupted: "interrupted", killed: "killed", silent: "silent" };

/** Returns whether no more data can come: an end inferred from silence is revoked when the run sends data. */
export const isOver = ({ state, end_inferred }) => ["finished", "failed", "interrupted"].includes(state) || (state === "killed" && !end_inferred);

/** Returns the key of WORDS for a run that is not active; null while it is running. */
export const quiet = ({ state }) => ENDS[state] ?? null;

/**
 * Returns what the mark shows, a key of WORDS or "paused". If the server is unreachable, that takes precedence over the
 * last state of a run that may still send data. `seconds`: time since the last data.
 */
export function markOf(connection, run, paused, seconds = 0) {
  if (connection === "disconnected" && !isOver(run)) return connection;
  const stands = quiet(run);
  if (stands) return stands;
  if (connection === "live" && seconds >= LATE_SECONDS) return "late";
  return paused && connection === "live" ? "paused" : connection;
}
