// Plays the scripts of closed sums of vectors v1.1: node frames.mjs CLOSED_SCRIPTS.json. Exit code 1 if an answer differs.
// tests/vectors/README.md has the format.
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { asText, bytesOf, keyPair, opened, playAll, readVectors, Recorded, stepsOf } from "./playing.mjs";
import { ClosedHospital } from "./site/closed.mjs";
import { concat, decode, hex, KeyPackage, body, unhex, utf8 } from "./site/encoding.mjs";
import { Journal } from "./site/files.mjs";
import { digest, Identity, verify } from "./site/primitives.mjs";
import { Roster } from "./site/roster.mjs";

const content = readVectors(process.argv[2]);

/** "0x1.0000000000000p+2" as a number, of a power of two or near one. */
function fromHex(text) {
  const [, whole, fraction, power] = /^0x(\d)\.([0-9a-f]+)p([+-]\d+)$/.exec(text);
  return Number(BigInt(`0x${whole}${fraction}`)) * 2 ** (Number(power) - 4 * fraction.length);
}

/** The study of the file: its plan, what the site adds, and a state of one tensor. */
class Program {
  constructor({ plan, fields, values, contributors }) {
    this.plan = plan;
    this.fields = fields.map(([name, shape, bound, bits]) => ({ name, shape, bound: fromHex(bound), bits }));
    this.values = Object.fromEntries(Object.entries(values).map(([name, value]) => [name, [value].flat()]));
    this.contributors = contributors.map(([sites, least]) => ({ sites, least }));
    this.total = new Float64Array(this.fields[0].shape[0]);
  }
  exchanges(round) {
    return (this.plan[round] ?? []).map((name) => ({ name, fields: this.fields }));
  }
  contribute() {
    return this.values;
  }
  absorb(_exchange, { weight }) {
    this.total = this.total.map((value, at) => value + weight[at]);
  }
  state() {
    const bytes = new Uint8Array(this.total.buffer);
    const about = { total: { dtype: "F64", shape: [this.total.length], data_offsets: [0, bytes.length] } };
    const text = JSON.stringify(about);
    const header = utf8(text.padEnd(Math.ceil(text.length / 8) * 8));
    const size = new DataView(new ArrayBuffer(8));
    size.setBigUint64(0, BigInt(header.length), true);
    return concat(new Uint8Array(size.buffer), header, bytes);
  }
}

function build(party, folder) {
  const { first } = content.draws;
  const { limits } = party;
  return new ClosedHospital({
    identity: new Identity(party.site, unhex(party.identity_seed)),
    roster: Roster.decode(unhex(party.roster)),
    study: party.study,
    sites: party.study_sites,
    holder: party.holder,
    program: new Program(party),
    policy: { minCohort: limits.min_cohort, minThreshold: limits.min_threshold, colluders: limits.colluders },
    cipher: party.keystream,
    draws: new Recorded(first),
    keyDraws: { groupKey: () => unhex(first.group_key), sealKey: () => keyPair(first.key_to_ask_with) },
    journal: new Journal(join(folder, "journal.jsonl")),
    transcript: { bodies: [], append() {} },
    folder,
  });
}

/** What a key holder sealed, once its signatures are right. */
function packed(reply, { keys, roster, identity }) {
  const { public_key: check, packages } = decode("KeyPackages", reply);
  return packages.map((one) => {
    const parts = [...keys.kappa, digest("study public key digest", check), body(KeyPackage, one)];
    verify(roster.keys.get(identity.name), one.signature, "sign study key package", ...parts);
    const to = keyPair(content.keys[one.recipient].seal_key);
    const found = to.open(one.sealed_key, "seal study key", ...keys.kappa, utf8(one.recipient));
    if (hex(digest("group key check", found)) !== hex(check)) throw new Error("another key than is named");
    return { recipient: one.recipient, group_key: hex(found) };
  });
}

function play(script, folder) {
  const site = build({ ...content.party, ...script.party }, folder);
  stepsOf(script, content).forEach((step, at) => {
    const where = `${script.name}, step ${at + 1}`;
    let reply;
    try {
      reply = site.handle(bytesOf(step.in, content));
    } catch (error) {
      if (error.kind === undefined || error.refusal !== step.refusal) throw new Error(`${where}: ${error.stack}`);
      return;
    }
    if ("refusal" in step) throw new Error(`${where}: not refused`);
    if ("sharing" in step) {
      const found = opened(reply, site.session.site, content);
      if (asText(found) !== asText(content.sharings[step.sharing])) throw new Error(`${where}: other envelopes`);
    } else if ("packages" in step) {
      if (asText(packed(reply, site)) !== asText(content.packages[step.packages])) throw new Error(`${where}: other keys`);
    } else if (hex(reply) !== hex(bytesOf(step.out, content))) throw new Error(`${where}: another reply`);
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
