// Print Leakline's alerts as lines, after checking signature, age and id.
//
//   npm install standardwebhooks    (without it, signatures are checked with node:crypto as specified)
//   WEBHOOK_SECRET=whsec_... node receiver.mjs
//
// WEBHOOK_SECRET may have several secrets separated by spaces during a rotation; PORT defaults to 9000.

import { createHmac, timingSafeEqual } from "node:crypto";
import { createServer } from "node:http";

const MAX_BODY_BYTES = 20_000;
const TOLERANCE_SECONDS = 300;
// An undelivered message is retried for hours, always with the same id. In production, use a table.
const MAX_REMEMBERED_IDS = 10_000;
const PARTS = { where: "where", what: "what", how_much: "how much", when: "since when", forecast: "forecast" };

class ByHand {
  constructor(secret) {
    this.key = Buffer.from(secret.replace(/^whsec_/, ""), "base64");
  }

  verify(body, headers) {
    const id = headers["webhook-id"];
    const sentAt = headers["webhook-timestamp"] ?? "";
    if (!id || !/^[0-9]{1,12}$/.test(sentAt)) throw new Error("no id or no time");
    if (Math.abs(Date.now() / 1000 - Number(sentAt)) > TOLERANCE_SECONDS) throw new Error("too old or too new");
    const wanted = createHmac("sha256", this.key).update(`${id}.${sentAt}.`).update(body).digest();
    const given = (headers["webhook-signature"] ?? "").split(" ").filter((one) => one.startsWith("v1,"));
    const ours = given.some((one) => {
      const signature = Buffer.from(one.slice(3), "base64");
      return signature.length === wanted.length && timingSafeEqual(signature, wanted);
    });
    if (!ours) throw new Error("no signature of ours");
    return JSON.parse(body.toString());
  }
}

const library = await import("standardwebhooks").catch(() => null);
const Verifier = library?.Webhook ?? ByHand;
const secrets = (process.env.WEBHOOK_SECRET ?? "").split(/\s+/).filter(Boolean).map((one) => new Verifier(one));
const seen = new Set();

/** The message, or null if no secret signed it within five minutes of now. */
function verified(body, headers) {
  for (const secret of secrets) {
    try {
      // Verified over the raw bytes: parsing and serialising the JSON again would change them.
      return secret.verify(body, headers);
    } catch {
      continue;
    }
  }
  return null;
}

/** The alert as plain text; names in it come from training scripts and are not trusted. */
function lines(message) {
  const data = message.data ?? {};
  const told = [`[${message.type}] ${data.title}`, `  ${data.summary}`];
  for (const [key, label] of Object.entries(PARTS)) {
    if (data[key]?.text) told.push(`  ${`${label}:`.padEnd(12)}${data[key].text}`);
  }
  for (const text of Array.isArray(data.advice) ? data.advice : []) told.push(`  ${"advice:".padEnd(12)}${text}`);
  told.push(`  ${data.link}`);
  return told.map((line) => line.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, " "));
}

/** The status to answer. Any status from 200 to 299 ends the sender's retries. */
function take(body, headers) {
  const message = verified(body, headers);
  if (message === null || typeof message !== "object") {
    console.error("refused: not signed by us, or older than five minutes");
    return 400;
  }
  const id = headers["webhook-id"];
  // A duplicate (our answer was lost, or the message is replayed) is accepted but not processed again.
  if (!seen.has(id)) {
    console.log(lines(message).join("\n"));
    seen.add(id);
    if (seen.size > MAX_REMEMBERED_IDS) seen.delete(seen.values().next().value);
  }
  return 204;
}

const server = createServer((request, response) => {
  const answer = (status) => response.writeHead(status, { "content-length": 0 }).end();
  const pieces = [];
  let size = 0;
  request.on("data", (piece) => {
    size += piece.length;
    if (size <= MAX_BODY_BYTES) pieces.push(piece);
  });
  request.on("end", () => {
    if (request.method !== "POST") answer(405);
    else if (size > MAX_BODY_BYTES) answer(413);
    else answer(take(Buffer.concat(pieces), request.headers));
  });
});
// Limits slow senders.
server.requestTimeout = 10_000;

if (secrets.length === 0) {
  console.error("set WEBHOOK_SECRET to the whsec_... that Leakline printed when the webhook was made");
  process.exit(1);
}
server.listen(Number(process.env.PORT ?? 9000), "127.0.0.1", () => {
  const by = library ? "standardwebhooks" : "node:crypto";
  console.error(`listening on http://127.0.0.1:${server.address().port}/ (signatures checked by ${by})`);
});
