// The published vectors, and every vector that must fail: node vectors.mjs [FOLDER]. Exit code 1 if any differs.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import * as encoding from "./site/encoding.mjs";
import { openFinalModel } from "./site/final_model.mjs";
import { mask, pack, unpack, vectorDigest } from "./site/lanes.mjs";
import { FixedPoint, Layout, toLanes } from "./site/layout.mjs";
import { Draws, MaskedSite } from "./site/masked.mjs";
import * as primitives from "./site/primitives.mjs";
import { Roster } from "./site/roster.mjs";
import * as shamir from "./site/shamir.mjs";

const { equal, hex, unhex, utf8 } = encoding;
const here = fileURLToPath(new URL("../../vectors/v1", import.meta.url));
const folder = process.argv[2] ?? here;
const STAGES = ["advertise", "share", "confirm", "mask", "consistency", "unmask", "result"];

/** A vector file; integers above 2^53 become text, which BigInt() reads. */
const load = (name) =>
  JSON.parse(readFileSync(join(folder, name), "utf8").replace(/([[\s:])(\d{16,})(?=[,\s\]])/g, '$1"$2"'));
const failures = [];
let checked = 0;

function check(name, test) {
  checked += 1;
  try {
    const outcome = test();
    if (outcome !== true) failures.push(`${name}: ${outcome}`);
  } catch (error) {
    failures.push(`${name}: ${error.stack}`);
  }
}

const same = (found, expected) => found === expected || `${found} in place of ${expected}`;
const words = (label) => label.replace(/^secfed\/v1 /, "");
const unhexAll = (parts) => parts.map(unhex);

/** float.fromhex */
function fromHex(text) {
  const [, sign, whole, fraction = "", power] = /^(-?)0x([0-9a-f]+)\.?([0-9a-f]*)p([+-]\d+)$/.exec(text);
  const mantissa = Number(BigInt(`0x${whole}${fraction}`));
  return (sign ? -1 : 1) * mantissa * 2 ** (Number(power) - 4 * fraction.length);
}

function labelsAndDerivations() {
  const labels = load("labels.json");
  for (const { label, parts, digest } of labels.digest) {
    check("digest", () => same(hex(primitives.digest(words(label), ...unhexAll(parts))), digest));
  }
  for (const { secret, label, context, size_bytes, output } of labels.derive) {
    const derived = () => primitives.derive(unhex(secret), words(label), unhexAll(context), size_bytes);
    check("derive", () => same(hex(derived()), output));
  }
  const given = load("derivations.json");
  const maskKey = primitives.SealKey.ofMaskSecret(unhex(given.mask_secret));
  check("mask key", () => same(hex(maskKey.publicKey), given.mask_key_public));
  for (const { sender, recipient, seed } of given.outgoing_seeds) {
    const context = [unhex(given.specification_digest), utf8(sender), utf8(recipient)];
    const derived = () => primitives.derive(unhex(given.mask_secret), "derive outgoing pair seed", context);
    check("outgoing seed", () => same(hex(derived()), seed));
  }
  const commitment = () => primitives.digest("self-mask commitment", unhex(given.self_seed));
  check("commitment", () => same(hex(commitment()), given.commitment));
  const context = unhexAll([given.specification_digest, given.layout_digest, given.broadcast_digest]);
  const pair = unhex(given.pair_seed_lower + given.pair_seed_higher);
  for (const { kind, run, bits, count, first_64_bytes } of given.streams) {
    const secret = kind === "self" ? unhex(given.self_seed) : pair;
    const name = utf8(`run ${run}: ${count} lanes of ${bits} bits`);
    const streamKey = () => primitives.derive(secret, `derive ${kind} mask stream`, [...context, name]);
    check(`${kind} stream`, () => same(hex(primitives.keystream(streamKey(), 64)), first_64_bytes));
  }
  const roster = Roster.decode(unhex(given.roster.encoding));
  check("roster digest", () => same(hex(roster.digest), given.roster.digest));
  check("roster encoding", () => same(hex(roster.encoding), given.roster.encoding));
  for (const [id, fingerprint] of Object.entries(given.roster.fingerprints)) {
    check("fingerprint", () => same(primitives.fingerprint(roster.keys.get(id)), fingerprint));
  }
  const signed = given.signature;
  const signer = new primitives.Identity("signer", unhex(signed.identity_seed));
  const signature = () => signer.sign(words(signed.label), ...unhexAll(signed.parts));
  check("signature", () => same(hex(signature()), signed.signature));
  for (const { sites, fields, runs, digest, wire_order } of given.layouts) {
    const layout = new Layout(fields, sites);
    check("layout digest", () => same(hex(layout.digest), digest));
    check("wire order", () => same(layout.fields.map(({ name }) => name).join(), wire_order.join()));
    check("runs", () => same(JSON.stringify(layout.runs.map((run) => [run.bits, run.count])), JSON.stringify(runs)));
  }
}

function arithmetic() {
  for (const one of load("fixedpoint.json").cases) {
    const rule = new FixedPoint(fromHex(one.bound), one.bits, one.sites);
    check("exponent", () => same(rule.exponent, one.exponent));
    one.values.forEach((value, at) => {
      const lane = () => rule.quantise(fromHex(value), one.random_word);
      check(`quantise ${value}`, () => same(lane(), BigInt(one.ring_integers[at])));
      check(`decode ${value}`, () => same(rule.decode(lane(), one.sites), fromHex(one.decoded[at])));
    });
  }
  for (const { bits, lanes, wire } of load("lanes.json").cases) {
    check(`pack ${bits}`, () => same(hex(pack(toLanes(lanes, bits), bits)), wire));
    check(`unpack ${bits}`, () => same(unpack(unhex(wire), { bits, count: lanes.length }).join(), lanes.join()));
  }
  for (const { secret, threshold, coefficients, shares, rebuilt_from_the_last } of load("shamir.json").cases) {
    const chosen = coefficients.map((value) => BigInt(`0x${value}`));
    for (const [x, value] of Object.entries(shares)) {
      check("share", () => same(hex(shamir.share(unhex(secret), chosen, x)), value));
    }
    const last = Object.entries(shares).slice(-threshold).map(([x, value]) => [x, unhex(value)]);
    check("combine", () => same(hex(shamir.combine(last, threshold)), rebuilt_from_the_last));
  }
  const streams = load("keystream.json");
  const stream = primitives.keystream(unhex(streams.stream_key), 262160);
  check("stream", () => same(hex(stream.subarray(0, 80)), streams.first_80_bytes));
  check("stream, later", () => same(hex(stream.subarray(262128)), streams.bytes_262128_to_262160));
  masks(streams.masked, "chacha20");
  for (const { bytes, digest } of streams.vector_digests) {
    const vector = Uint8Array.from({ length: bytes }, (_, k) => k % 251);
    check("vector digest", () => same(hex(vectorDigest(vector)), digest));
  }
  const aes = load("keystream_aes.json");
  for (const { segment, first_80_bytes } of aes.segments) {
    const found = () => primitives.aesSegment(unhex(aes.stream_key), segment, 80);
    check(`segment ${segment} of AES-256`, () => same(hex(found()), first_80_bytes));
  }
  masks(aes.masked, aes.keystream);
}

function masks(masked, cipher) {
  const context = unhexAll([masked.specification_digest, masked.layout_digest, masked.broadcast_digest]);
  const pair = unhex(masked.pair_seed_lower + masked.pair_seed_higher);
  const lanes = masked.runs.map(({ bits, count }) =>
    toLanes(Array.from({ length: count }, (_, k) => BigInt(k) % 2n ** BigInt(bits)), bits));
  masked.runs.forEach((run, at) => { // each is the only run of its vector
    const { bits, sha256, vector_digest } = run;
    mask([lanes[at]], [run], unhex(masked.self_seed), "derive self mask stream", context, 1, cipher);
    mask([lanes[at]], [run], pair, "derive pair mask stream", context, -1, cipher);
    const wire = pack(lanes[at], bits);
    check(`${cipher}: masked run of ${bits} bits`, () => same(hex(primitives.sha256(wire)), sha256));
    check("vector digest", () => same(hex(vectorDigest(wire)), vector_digest));
  });
}

/** A field of messages.json: hexadecimal, a repeated byte, a list, or the value itself. */
function fromJson(value) {
  if (Array.isArray(value)) return value.map(fromJson);
  if (value && typeof value === "object") {
    if ("byte" in value && "count" in value) return new Uint8Array(value.count).fill(parseInt(value.byte, 16));
    return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, fromJson(inner)]));
  }
  return value;
}

const SPARSE = [20, 21, 22, 23, 24, 25]; // the sparse graph is left out here

function messages() {
  for (const { name, type, fields, encoding: expected } of load("messages.json").messages) {
    if (SPARSE.includes(type)) continue;
    const known = Object.keys(encoding.MESSAGES).find((one) => encoding.MESSAGES[one][0] === type);
    check(`encode ${name}`, () => same(hex(encoding.encode(known, asBytes(fromJson(fields)))), expected));
    const again = () => encoding.encode(known, encoding.decode(known, unhex(expected)));
    check(`decode ${name}`, () => same(hex(again()), expected));
  }
}

/** Vector fields that stand as hexadecimal text become bytes. */
function asBytes(value) {
  for (const field of ["vector", "model", "spec_digest"]) if (typeof value[field] === "string") value[field] = unhex(value[field]);
  return value;
}

/** Draws and replies of one site of attempt.json. */
class Recorded extends Draws {
  constructor(recorded, sharing) {
    super();
    const envelopes = sharing ? encoding.decode("Sharing", unhex(sharing)).envelopes : [];
    const sealed = new Map(envelopes.map((envelope) => [envelope.recipient, envelope]));
    const integers = (values) => values.map((value) => BigInt(`0x${value}`));
    this.maskSecret = () => unhex(recorded.mask_secret);
    this.selfSeed = () => unhex(recorded.self_seed);
    this.sealKey = () =>
      new primitives.SealKey(unhex(recorded.seal_key_mlkem_seed), unhex(recorded.seal_key_x25519_private));
    this.coefficients = (which) =>
      integers(which === "mask secret" ? recorded.coefficients_of_mask_secret : recorded.coefficients_of_self_seed);
    this.seal = (recipient, part) => sealed.get(recipient)[part === "seed" ? "sealed_seed" : "sealed_shares"];
  }
}

const attempt = load("attempt.json");
const requestTo = (stage, site) =>
  unhex(attempt.requests[stage].message ?? attempt.requests[stage][site]);
const silent = { complains() {}, releases() {}, sums() {}, begin() {}, uploaded() {}, unmasked() {} };

/** A site at stage `until`; throws if it replied anything else than was recorded on the way. */
function rebuild(site, until, check = true) {
  const recorded = attempt.sites[site];
  const layout = new Layout(
    attempt.layout.fields.map(([name, shape, bound, bits]) => ({ name, shape, bound: fromHex(bound), bits })),
    attempt.layout.sites,
  );
  const values = Object.fromEntries(
    Object.entries(recorded.summands).map(([name, inner]) => [name, inner.map(fromHex)]),
  );
  const spec = encoding.decode("Specification", requestTo("advertise", site));
  const { study, round, exchange, exchange_index: exchangeIndex } = spec;
  const lanes = layout.quantise(values, unhex(recorded.rounding_key));
  const drawn = lanes.map((run) => run.join()).join("|");
  if (drawn !== recorded.ring_integers.map((run) => run.join()).join("|")) throw new Error("other integers");
  const session = new MaskedSite({
    identity: new primitives.Identity(site, unhex(recorded.identity_seed)),
    roster: Roster.decode(unhex(attempt.roster)),
    work: {
      study, round, exchange, exchangeIndex, layout, lanes, isPrivate: true,
      broadcastDigest: primitives.digest("broadcast digest", unhex(attempt.broadcast)),
    },
    journal: silent,
    tell: silent,
    draws: new Recorded(recorded, attempt.replies.share[site]),
  });
  for (const stage of STAGES) {
    if (stage === until) break;
    const reply = hex(session.handle(requestTo(stage, site)));
    if (check && reply !== (attempt.replies[stage]?.[site] ?? "")) throw new Error(`${site}: another reply at ${stage}`);
  }
  return session;
}

function wholeAttempt() {
  for (const site of Object.keys(attempt.sites)) {
    const dropped = !attempt.survivors.includes(site);
    check(`attempt: ${site}`, () => same(rebuild(site, dropped ? "mask" : null).state, dropped ? "await SharingSet" : "Finished"));
  }
}

const together = (pieces, honest) =>
  encoding.concat(...pieces.map(([kind, ...rest]) => (kind === "request" ? honest.subarray(...rest) : unhex(rest[0]))));
const SITE = "hospital-1";

const OPERATIONS = {
  "decode a message": ({ message, input }) => encoding.decode(message, unhex(input)),
  "combine shares": ({ shares, threshold }) =>
    shamir.combine(Object.entries(shares).map(([x, value]) => [x, unhex(value)]), threshold),
  "choose a fixed point": ({ bound, bits, sites }) => new FixedPoint(fromHex(bound), bits, sites),
  quantise: ({ bound, bits, sites, values }) => {
    const rule = new FixedPoint(fromHex(bound), bits, sites);
    values.forEach((value) => rule.quantise(value.includes("0x") ? fromHex(value) : Number(value.replace("inf", "Infinity")), 0));
  },
  "decode a sum": ({ bound, bits, sites, sums }) => {
    const rule = new FixedPoint(fromHex(bound), bits, sites);
    sums.forEach((lane) => rule.decode(lane, sites));
  },
  "unpack lanes": ({ bits, count, input }) => unpack(unhex(input), { bits, count }),
  "open an envelope": ({ mlkem_seed, x25519_private, label, context, input }) =>
    new primitives.SealKey(unhex(mlkem_seed), unhex(x25519_private)).open(unhex(input), words(label), ...unhexAll(context)),
  "seal an envelope": ({ public: key }) => primitives.seal(unhex(key), new Uint8Array(0), "seal shares"),
  "verify a signature": ({ public: key, signature, label, parts }) =>
    primitives.verify(unhex(key), unhex(signature), words(label), ...unhexAll(parts)),
  "decode a roster": ({ input }) => Roster.decode(unhex(input)),
  "open a final model": ({ study, input }) =>
    openFinalModel(unhex(input), Roster.decode(unhex(attempt.roster)), study),
  "hand a message to a site": ({ stage, pieces, complaint }) => {
    const session = rebuild(SITE, complaint ? "confirm" : stage);
    if (complaint) {
      const reply = session.handle(together(complaint.pieces, requestTo("confirm", SITE)));
      if (!equal(reply, unhex(complaint.reply))) throw new Error("another complaint than the recorded one");
    }
    try {
      session.handle(together(pieces, requestTo(stage, SITE)));
    } finally {
      if (session.state !== "Closed") throw new Error(`the session is not closed but in ${session.state}`);
    }
  },
};

function bad() {
  for (const file of ["messages", "arithmetic", "keys", "model", "site"]) {
    for (const one of load(`bad_${file}.json`).cases) {
      check(one.name, () => {
        try {
          OPERATIONS[one.operation](one);
        } catch (error) {
          if (error.kind === undefined) throw error;
          const refusal = one.refusal === undefined || error.refusal === one.refusal;
          return (error.kind === one.error && refusal) || `${error.name}: ${error.message}`;
        }
        return "it does not fail";
      });
    }
  }
}

/** Published vectors of what no other vector can show: envelopes of a seed that is not ours. */
function envelopes() {
  const key = new primitives.SealKey(primitives.random(64), primitives.random(32));
  const sealed = primitives.seal(key.publicKey, utf8("shares"), "seal shares", utf8("context"));
  check("an envelope of ours", () => same(hex(key.open(sealed, "seal shares", utf8("context"))), hex(utf8("shares"))));
}

labelsAndDerivations();
arithmetic();
messages();
wholeAttempt();
bad();
envelopes();
for (const failure of failures) console.error(failure);
console.log(`${checked - failures.length} of ${checked} checks pass`);
process.exit(failures.length > 0 ? 1 : 0);
