// How a run stands, in a word for the live mark: a page may be connected to a run that says nothing. Knows no page.

export const WORDS = {
  live: "Live", closed: "Not connected", disconnected: "Disconnected", ended: "Ended", failed: "Failed", killed: "Killed",
  interrupted: "Interrupted", silent: "Silent", late: "No data",
};
// A client that lives sends every ten seconds at least (REPORT_EVERY_SECONDS of background_readings.py), and what it sends takes a moment:
// so long after the newest data the second of two heartbeats is missing.
const LATE_SECONDS = 22;
const ENDS = { finished: "ended", failed: "failed", interrupted: "interrupted", killed: "killed", silent: "silent" };

/** Whether nothing more is to come: what is inferred from silence, a word of the run takes back. */
export const isOver = ({ state, end_inferred }) => ["finished", "failed", "interrupted"].includes(state) || (state === "killed" && !end_inferred);

/** What a run is that does not speak, by a name of WORDS; null of one that runs. */
export const quiet = ({ state }) => ENDS[state] ?? null;

/**
 * What the mark shows, by a name of WORDS or "paused". A server that is away goes before what it sent last of a run that may
 * speak again. `seconds`: since the run was heard of.
 */
export function markOf(connection, run, paused, seconds = 0) {
  if (connection === "disconnected" && !isOver(run)) return connection;
  const stands = quiet(run);
  if (stands) return stands;
  if (connection === "live" && seconds >= LATE_SECONDS) return "late";
  return paused && connection === "live" ? "paused" : connection;
}
