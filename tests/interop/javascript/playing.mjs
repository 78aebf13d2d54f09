// What the players of scripts share: the file, its bytes, recorded draws, and envelopes that are opened again.
import { readFileSync } from "node:fs";
import { body, concat, decode, Envelope, hex, MESSAGES, SeedEnvelope, typeOf, unhex, utf8 } from "./site/encoding.mjs";
import { Draws } from "./site/masked.mjs";
import { digest, SealKey, verify } from "./site/primitives.mjs";

const NUMBERS = /"(?:[^"\\]|\\.)*"|\d{16,}/g; // and text, inside which nothing is a number
const quoted = (found) => (found[0] === '"' ? found : `"${found}"`);

/** A file of vectors; integers of 16 digits and more become text, which BigInt() reads. */
export const readVectors = (path) => JSON.parse(readFileSync(path, "utf8").replace(NUMBERS, quoted));

export const keyPair = ({ mlkem_seed, x25519_private }) => new SealKey(unhex(mlkem_seed), unhex(x25519_private));

/** Draws as they are written down; sealing is random. */
export class Recorded extends Draws {
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

export const bytesOf = (parts, content) =>
  concat(...parts.map((part) => {
    if (typeof part === "string") return unhex(part);
    const [name, start, end] = part;
    return unhex(content.bytes[name]).subarray(start, end);
  }));

export function stepsOf({ after, steps }, content) {
  if (after === undefined) return steps;
  const [name, count] = after;
  return [...content.scripts.find((one) => one.name === name).steps.slice(0, count), ...steps];
}

/** What a Sharing sealed, once signatures and digests are right. */
export function opened(sharing, session, content) {
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

/** A list of records as text, whatever the order of their names. */
export const asText = (list) => list.map((one) => JSON.stringify(Object.fromEntries(Object.entries(one).sort()))).join();


/** Plays every script with `play`; ends the process, with 1 if one of them fails. */
export function playAll(scripts, play) {
  let failures = 0;
  for (const script of scripts) {
    try {
      play(script);
    } catch (error) {
      failures += 1;
      console.error(error.message);
    }
  }
  console.log(`${scripts.length - failures} of ${scripts.length} scripts`);
  process.exit(failures > 0 ? 1 : 0);
}
