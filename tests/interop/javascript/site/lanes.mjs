// Sections 6.3, 6.4 and 6.6 of docs/protocol.md: lanes on the wire, and masks.
import { concat, equal, uint, utf8 } from "./encoding.mjs";
import { malformed } from "./errors.mjs";
import { toLanes } from "./layout.mjs";
import { CIPHERS, derive, digest, sha256 } from "./primitives.mjs";

const PIECE = 2 ** 20;

export const wireSize = ({ bits, count }) => Math.ceil((bits * count) / 8);

/** One run on the wire. */
export function pack(lanes, bits) {
  if (bits === 64) {
    const out = new DataView(new ArrayBuffer(8 * lanes.length));
    lanes.forEach((lane, at) => out.setBigUint64(8 * at, lane, true));
    return new Uint8Array(out.buffer);
  }
  const out = new Uint8Array(wireSize({ bits, count: lanes.length }));
  let [at, waiting, filled] = [0, 0, 0]; // fewer than 8 + 32 bits wait: exact in a float64
  for (const lane of lanes) {
    waiting += (lane % 2 ** bits) * 2 ** filled;
    for (filled += bits; filled >= 8; filled -= 8) {
      out[at++] = waiting % 256;
      waiting = Math.floor(waiting / 256);
    }
  }
  if (filled > 0) out[at] = waiting;
  return out;
}

export function unpack(data, run) {
  if (data.length !== wireSize(run)) throw malformed("a run has another length");
  const lanes = Array.from({ length: run.count }, (_, lane) => {
    let value = 0n;
    for (let bit = run.bits - 1; bit >= 0; bit--) {
      const at = lane * run.bits + bit;
      value = (value << 1n) | BigInt((data[at >> 3] >> (at & 7)) & 1);
    }
    return value;
  });
  const unpacked = toLanes(lanes, run.bits);
  if (!equal(pack(unpacked, run.bits), data)) throw malformed("padding is not zero");
  return unpacked;
}

/** Adds (`sign` = 1) or subtracts (-1) the streams of a secret, in place. `context` is [σ, layout, broadcast]. */
export function mask(lanesByRun, runs, secret, words, context, sign, cipher = "chacha20") {
  const { ending, stream: streamOf } = CIPHERS[cipher];
  runs.forEach(({ bits, count }, index) => {
    const name = utf8(`run ${index}: ${count} lanes of ${bits} bits`);
    const word = bits === 64 ? 8 : 4;
    const streamKey = derive(secret, words + ending, [...context, name]);
    const stream = new DataView(streamOf(streamKey, word * count).buffer);
    const lanes = lanesByRun[index];
    for (let at = 0; at < count; at++) {
      // A typed array keeps the low 32 or 64 bits, which is the ring.
      if (bits === 64) lanes[at] += BigInt(sign) * stream.getBigUint64(8 * at, true);
      else lanes[at] += sign * stream.getUint32(4 * at, true);
    }
  });
}

export const packAll = (lanesByRun, runs) => concat(...runs.map(({ bits }, at) => pack(lanesByRun[at], bits)));

/** The uploaded vector digest. */
export function vectorDigest(vector) {
  const pieces = [];
  for (let at = 0; at < vector.length; at += PIECE) pieces.push(sha256(vector.subarray(at, at + PIECE)));
  return digest("uploaded vector digest", uint(8, vector.length), ...pieces);
}
