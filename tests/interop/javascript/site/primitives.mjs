// Sections 2 to 4 of docs/protocol.md: hashes, signatures, derivations, envelopes, streams.
import { createCipheriv, randomBytes } from "node:crypto";
import { chacha20, chacha20poly1305 } from "@noble/ciphers/chacha.js";
import { ed25519, x25519 } from "@noble/curves/ed25519.js";
import { expand, extract, hkdf } from "@noble/hashes/hkdf.js";
import { sha256, sha512 } from "@noble/hashes/sha2.js";
import { sha3_256 } from "@noble/hashes/sha3.js";
import { ml_kem768 } from "@noble/post-quantum/ml-kem.js";
import { concat, equal, MAGIC, uint, utf8 } from "./encoding.mjs";
import { malformed, ProtocolError } from "./errors.mjs";

export { sha256 };
export const random = (size) => new Uint8Array(randomBytes(size));

const MLKEM_PUBLIC = 1184;
const MLKEM_CIPHERTEXT = 1088;
const X25519 = 32;
const TAG = 16;

/** A label of section 4 by its words; the document leaves out the version in running text, and so do we. */
const label = (words) => concat(MAGIC, utf8(` ${words}`));

const counted = (size, parts) => parts.flatMap((part) => [uint(size, part.length), part]);

export const digest = (words, ...parts) => sha256(concat(...counted(8, [label(words), ...parts])));

export const info = (words, parts) => concat(...counted(4, [label(words), ...parts]));

export const derive = (secret, words, parts = [], size = 32) =>
  hkdf(sha256, secret, undefined, info(words, parts), size);

export class Identity {
  constructor(name, seed) {
    this.name = name;
    this.seed = seed;
    this.publicKey = ed25519.getPublicKey(seed);
  }
  sign(words, ...parts) {
    return ed25519.sign(digest(words, ...parts), this.seed);
  }
}

/**
 * Whether a signature verifies. Without the cofactor: R as it stands must be the encoding of [S]B - [k]A. (The
 * library's own check multiplies by the cofactor, and so takes signatures that others refuse.)
 */
export function verifies(publicKey, signature, words, ...parts) {
  const { Point } = ed25519;
  const [r, sBytes] = [signature.subarray(0, 32), signature.subarray(32)];
  const little = (data) => data.reduceRight((sum, byte) => (sum << 8n) | BigInt(byte), 0n);
  const order = Point.Fn.ORDER;
  const s = little(sBytes);
  if (s >= order) return false;
  let a;
  try {
    a = Point.fromBytes(publicKey, true);
  } catch {
    return false;
  }
  const k = little(sha512(concat(r, publicKey, digest(words, ...parts)))) % order;
  return equal(Point.BASE.multiplyUnsafe(s).subtract(a.multiplyUnsafe(k)).toBytes(), r);
}

export function verify(publicKey, signature, words, ...parts) {
  if (!verifies(publicKey, signature, words, ...parts)) {
    throw new ProtocolError("BadSignature", "a signature does not verify");
  }
}

/** A seal key pair from its two halves: an ML-KEM-768 seed (64 bytes), an X25519 private key (32). */
export class SealKey {
  constructor(mlkemSeed, x25519Private) {
    const { publicKey, secretKey } = ml_kem768.keygen(mlkemSeed);
    this.mlkemSecret = secretKey;
    this.x25519Private = x25519Private;
    this.x25519Public = x25519.getPublicKey(x25519Private);
    this.publicKey = concat(publicKey, this.x25519Public);
  }
  static ofMaskSecret(secret) {
    const mlkemSeed = derive(secret, "derive mask key ML-KEM-768", [], 64);
    return new SealKey(mlkemSeed, derive(secret, "derive mask key X25519"));
  }
  open(envelope, words, ...parts) {
    const start = MLKEM_CIPHERTEXT + X25519;
    if (envelope.length < start + TAG) throw malformed("an envelope is too short");
    const share = envelope.subarray(MLKEM_CIPHERTEXT, start);
    try {
      const mlkem = ml_kem768.decapsulate(envelope.subarray(0, MLKEM_CIPHERTEXT), this.mlkemSecret);
      const x = x25519.getSharedSecret(this.x25519Private, share);
      const shared = combine(mlkem, x, share, this.x25519Public);
      return hpke(shared, info(words, parts)).decrypt(envelope.subarray(start));
    } catch {
      throw malformed("an envelope does not open");
    }
  }
}

/** X-Wing's combiner. Source: draft-connolly-cfrg-xwing-kem, section 5.3. */
export const combine = (mlkem, x, share, publicX) =>
  sha3_256(concat(mlkem, x, share, publicX, utf8("\\.//^\\")));

/** The first AEAD of an HPKE context in base mode. Source: RFC 9180, sections 4 and 5.1. */
function hpke(shared, context) {
  const suite = concat(utf8("HPKE"), uint(2, 0x647a), uint(2, 0x0001), uint(2, 0x0003));
  const none = new Uint8Array(0);
  const labeledExtract = (salt, name, key) =>
    extract(sha256, concat(utf8("HPKE-v1"), suite, utf8(name), key), salt);
  const schedule = concat(
    uint(1, 0), labeledExtract(none, "psk_id_hash", none), labeledExtract(none, "info_hash", context),
  );
  const secret = labeledExtract(shared, "secret", none);
  const labeledExpand = (name, size) =>
    expand(sha256, secret, concat(uint(2, size), utf8("HPKE-v1"), suite, utf8(name), schedule), size);
  return chacha20poly1305(labeledExpand("key", 32), labeledExpand("base_nonce", 12));
}

/** Seals to a public key; malformed if it cannot be sealed to (section 2, "Validation"). */
export function seal(publicKey, plaintext, words, ...parts) {
  const [mlkemKey, publicX] = [publicKey.subarray(0, MLKEM_PUBLIC), publicKey.subarray(MLKEM_PUBLIC)];
  const ephemeral = random(X25519);
  try {
    const { cipherText, sharedSecret } = ml_kem768.encapsulate(mlkemKey); // checks the modulus
    const x = x25519.getSharedSecret(ephemeral, publicX); // refuses a shared secret of zeros
    const share = x25519.getPublicKey(ephemeral);
    const shared = combine(sharedSecret, x, share, publicX);
    return concat(cipherText, share, hpke(shared, info(words, parts)).encrypt(plaintext));
  } catch {
    throw malformed("a key cannot be sealed to");
  }
}

/** The first `size` bytes of the ChaCha20 stream of a key. */
export const keystream = (streamKey, size) => chacha20(streamKey, new Uint8Array(12), new Uint8Array(size));

const SEGMENT = 2 ** 20;

/** Section 6.6: `size` bytes of segment `number` of the AES-256 stream of a key. */
export function aesSegment(streamKey, number, size) {
  const first = concat(uint(4, 0), uint(8, number), uint(4, 2));
  return new Uint8Array(createCipheriv("aes-256-ctr", streamKey, first).update(new Uint8Array(size)));
}

/** The ciphers of mask streams by their name in a study: how their labels end, and the first bytes of a stream. */
export const CIPHERS = {
  chacha20: { ending: "", stream: keystream },
  "aes-256-ctr": {
    ending: " AES-256-CTR",
    stream: (streamKey, size) =>
      concat(...Array.from({ length: Math.ceil(size / SEGMENT) }, (_, number) =>
        aesSegment(streamKey, number, Math.min(SEGMENT, size - number * SEGMENT)))),
  },
};

/** What people compare: ten groups of four hexadecimal digits. */
export const fingerprint = (publicKey) =>
  Buffer.from(digest("identity fingerprint", publicKey)).toString("hex").slice(0, 40).match(/.{4}/g).join(" ");
