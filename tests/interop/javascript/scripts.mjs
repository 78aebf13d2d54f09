// Plays the site scripts of vectors v1.1: node scripts.mjs SITE_SCRIPTS.json. Exit code 1 if an answer differs.
// tests/vectors/README.md has the format.
import { copyFileSync, mkdtempSync, renameSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { asText, bytesOf, opened, playAll, readVectors, Recorded, stepsOf } from "./playing.mjs";
import { hex, unhex } from "./site/encoding.mjs";
import { Journal } from "./site/files.mjs";
import { toLanes } from "./site/layout.mjs";
import { MaskedSite } from "./site/masked.mjs";
import { Identity } from "./site/primitives.mjs";
import { Roster } from "./site/roster.mjs";
import { SparseSite } from "./site/sparse.mjs";

const content = readVectors(process.argv[2]);
const silent = { complains() {}, releases() {}, sums() {} };

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

function play(script, folder) {
  const path = join(folder, "journal.jsonl");
  let journal = new Journal(path);
  const sessions = {};
  let session;
  const steps = stepsOf(script, content);
  // Where no earlier session speaks again, a new one is what a restart makes of the journal's file.
  const restarts = !steps.some((step) => "to" in step || "journal" in step);
  steps.forEach((step, at) => {
    const where = `${script.name}, step ${at + 1}`;
    if ("open" in step) {
      if (restarts) journal = new Journal(path);
      session = open({ ...content.party, ...step.party }, content.draws[step.draws], journal);
      sessions[step.open] = session;
    } else if ("to" in step) session = sessions[step.to];
    else if (step.journal === "keep") copyFileSync(path, `${path}.copy`);
    else if (step.journal === "replace") renameSync(`${path}.copy`, path);
    else if ("journal" in step) copyFileSync(`${path}.copy`, path);
    else {
      let reply;
      try {
        reply = session.handle(bytesOf(step.in, content));
      } catch (error) {
        if (error.refusal === undefined || error.refusal !== step.refusal) throw new Error(`${where}: ${error.stack}`);
        return;
      }
      if ("refusal" in step) throw new Error(`${where}: not refused with ${step.refusal}`);
      if ("sharing" in step) {
        const recorded = content.sharings[step.sharing];
        if (asText(opened(reply, session, content)) !== asText(recorded)) {
          throw new Error(`${where}: other envelopes than recorded`);
        }
      } else if (hex(reply) !== hex(bytesOf(step.out, content))) throw new Error(`${where}: another reply than the recorded one`);
    }
  });
}

playAll(content.scripts, (script) => {
  const folder = mkdtempSync(join(tmpdir(), "secfed-"));
  try {
    play(script, folder);
  } finally {
    rmSync(folder, { recursive: true });
  }
});
