// Plays the site scripts of vectors v1.1: node scripts.mjs SITE_SCRIPTS.json. Exit code 1 if an answer differs.
// tests/vectors/README.md has the format.
import { copyFileSync, mkdtempSync, readFileSync, renameSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { body, concat, decode, Envelope, hex, MESSAGES, SeedEnvelope, typeOf, unhex, utf8 } from "./site/encoding.mjs";
import { Journal } from "./site/files.mjs";
import { toLanes } from "./site/layout.mjs";
import { Draws, MaskedSite } from "./site/masked.mjs";
import { digest, Identity, SealKey, verify } from "./site/primitives.mjs";
import { Roster } from "./site/roster.mjs";
import { SparseSite } from "./site/sparse.mjs";

const bigIntegersAsText = (text) => text.replace(/([[\s:,])(\d{16,})(?=[,\s\]}])/g, '$1"$2"');
const content = JSON.parse(bigIntegersAsText(readFileSync(process.argv[2], "utf8")));
const silent = { complains() {}, releases() {}, sums() {} };
const keyPair = ({ mlkem_seed, x25519_private }) => new SealKey(unhex(mlkem_seed), unhex(x25519_private));

/** Draws as they are written down; sealing is random. */
class Recorded extends Draws {
  constructor({ mask_secret, self_mask_seed, seal_key, coefficients, picks = [] }) {
    super();
    const left = coefficients.map((value) => BigInt(`0x${value}`));
    this.maskSecret = () => unhex(mask_secret);
    this.selfSeed = () => unhex(self_mask_seed);
    this.sealKey = () => keyPair(seal_key);
    const picked = [...picks];
    this.pick = (limit) => picked.shift() % limit;
    this.coefficients = (_which, threshold) => left.splice(0, threshold - 1);
  }
}

const bytesOf = (parts) =>
  concat(...parts.map((part) => {
    if (typeof part === "string") return unhex(part);
    const [name, start, end] = part;
    return unhex(content.bytes[name]).subarray(start, end);
  }));

function stepsOf({ after, steps }) {
  if (after === undefined) return steps;
  const [name, count] = after;
  return [...content.scripts.find((one) => one.name === name).steps.slice(0, count), ...steps];
}

function open(party, draws, journal) {
  const runs = party.runs.map(([bits, count]) => ({ bits, count }));
  const { limits } = party;
  const roster = Roster.decode(unhex(party.roster));
  const Session = party.graph ? SparseSite : MaskedSite;
  return new Session({
    identity: new Identity(party.site, unhex(party.identity_seed)),
    roster,
    work: {
      study: party.study, round: party.round, exchange: party.exchange, exchangeIndex: party.exchange_index,
      layout: { runs, digest: unhex(party.layout_digest), elements: runs.reduce((sum, { count }) => sum + count, 0) },
      broadcastDigest: unhex(party.broadcast_digest),
      lanes: party.lanes.map((run, at) => toLanes(run, runs[at].bits)),
      asked: party.planned ?? undefined,
      contributors: party.contributors.map(([sites, least]) => ({ sites, least })),
      isPrivate: party.privacy_applied,
      cipher: party.keystream,
      graph: party.graph,
      groupKey: party.group_key && unhex(party.group_key),
    },
    policy: {
      minCohort: limits.min_cohort, minThreshold: limits.min_threshold, maxElements: limits.max_elements,
      demandsPrivacy: limits.require_privacy, ...(limits.colluders === null ? {} : { colluders: limits.colluders }),
    },
    journal,
    tell: silent,
    draws: new Recorded(draws),
  });
}

/** What a Sharing sealed, once signatures and digests are right. */
function opened(sharing, session) {
  const { sigma, alpha, name, roster } = session;
  const sparse = typeOf(sharing) === MESSAGES.NeighbourSharing[0];
  const { envelopes, seeds = [] } = decode(sparse ? "NeighbourSharing" : "Sharing", sharing);
  return [...envelopes, ...seeds].map((envelope) => {
    const [words, type] = seeds.includes(envelope) ? ["sign seed envelope", SeedEnvelope] : ["sign envelope", Envelope];
    verify(roster.keys.get(name), envelope.signature, words, sigma, alpha, body(type, envelope));
    const context = [sigma, alpha, utf8(envelope.sender), utf8(envelope.recipient)];
    const keys = content.keys[envelope.recipient];
    const { sender, recipient } = envelope;
    const seed = keyPair(keys.mask_key).open(envelope.sealed_seed, "seal pair seed", ...context);
    if (type === SeedEnvelope) return { sender, recipient, seed: hex(seed) };
    const shares = keyPair(keys.seal_key).open(envelope.sealed_shares, "seal shares", ...context);
    const stated = hex(envelope.mask_secret_share_digest) + hex(envelope.self_mask_share_digest);
    const held = [["mask secret share digest", shares.subarray(0, 33)], ["self-mask share digest", shares.subarray(33)]];
    if (stated !== held.map(([words, share]) => hex(digest(words, ...context, share))).join("")) {
      throw new Error("an envelope states digests of other shares than it holds");
    }
    return { sender, recipient, seed: hex(seed), shares: hex(shares) };
  });
}

const sorted = (record) => JSON.stringify(Object.fromEntries(Object.entries(record).sort()));

function play(script, folder) {
  const path = join(folder, "journal.jsonl");
  const journal = new Journal(path);
  const sessions = {};
  let session;
  stepsOf(script).forEach((step, at) => {
    const where = `${script.name}, step ${at + 1}`;
    if ("open" in step) {
      session = open({ ...content.party, ...step.party }, content.draws[step.draws], journal);
      sessions[step.open] = session;
    } else if ("to" in step) session = sessions[step.to];
    else if (step.journal === "keep") copyFileSync(path, `${path}.copy`);
    else if (step.journal === "replace") renameSync(`${path}.copy`, path);
    else if ("journal" in step) copyFileSync(`${path}.copy`, path);
    else {
      let reply;
      try {
        reply = session.handle(bytesOf(step.in));
      } catch (error) {
        if (error.refusal === undefined || error.refusal !== step.refusal) throw new Error(`${where}: ${error.stack}`);
        return;
      }
      if ("refusal" in step) throw new Error(`${where}: not refused with ${step.refusal}`);
      if ("sharing" in step) {
        const recorded = content.sharings[step.sharing];
        if (opened(reply, session).map(sorted).join() !== recorded.map(sorted).join()) {
          throw new Error(`${where}: other envelopes than recorded`);
        }
      } else if (hex(reply) !== hex(bytesOf(step.out))) throw new Error(`${where}: another reply than the recorded one`);
    }
  });
}

let failures = 0;
for (const script of content.scripts) {
  const folder = mkdtempSync(join(tmpdir(), "secfed-"));
  try {
    play(script, folder);
  } catch (error) {
    failures += 1;
    console.error(error.message);
  } finally {
    rmSync(folder, { recursive: true });
  }
}
console.log(`${content.scripts.length - failures} of ${content.scripts.length} scripts`);
process.exit(failures > 0 ? 1 : 0);
