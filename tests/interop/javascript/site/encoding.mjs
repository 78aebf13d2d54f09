// Section 3 of docs/protocol.md: canonical encoding, and the byte tables of section 7 as data. The names of
// fields are those of the tables.
import { malformed } from "./errors.mjs";

const UTF8 = new TextEncoder();
const STRICT_UTF8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const MAX_ID_BYTES = 200;
const MAX_ITEMS = 1000;

export const utf8 = (text) => UTF8.encode(text);
export const hex = (bytes) => Buffer.from(bytes).toString("hex");
export const unhex = (text) => new Uint8Array(Buffer.from(text, "hex"));
export const equal = (a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)) === 0;

export function concat(...parts) {
  return new Uint8Array(Buffer.concat(parts));
}

/** An unsigned integer of `bytes` bytes, big-endian. */
export function uint(bytes, value) {
  const out = new Uint8Array(bytes);
  let rest = BigInt(value);
  for (let at = bytes - 1; at >= 0; at--, rest >>= 8n) out[at] = Number(rest & 255n);
  if (rest !== 0n) throw new RangeError(`${value} does not fit in ${bytes} bytes`);
  return out;
}

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }
  get left() {
    return this.bytes.length - this.at;
  }
  take(count) {
    if (count > this.left) throw malformed("the bytes end too early");
    this.at += count;
    return this.bytes.subarray(this.at - count, this.at);
  }
  number(bytes) {
    return Number(this.take(bytes).reduce((sum, byte) => (sum << 8n) | BigInt(byte), 0n));
  }
}

// A type of section 3: how a value is written, and read from a Reader. `size` where it is fixed.
const unsigned = (size) => ({
  size,
  write: (value) => uint(size, value),
  read: (reader) => reader.number(size),
});
export const u8 = unsigned(1);
export const u16 = unsigned(2);
export const u32 = unsigned(4);
export const u64 = unsigned(8);
export const bytes = (size) => ({
  size,
  write: (value) => {
    if (value.length !== size) throw new RangeError(`${value.length} bytes in place of ${size}`);
    return value;
  },
  read: (reader) => reader.take(size),
});
const zeros = (size) => ({
  size,
  write: () => new Uint8Array(size),
  read: (reader) => {
    if (reader.take(size).some((byte) => byte !== 0)) throw malformed("padding is not zero");
  },
});
const blobOf = (prefix, cap) => ({
  write: (value) => concat(uint(prefix, value.length), value),
  read: (reader) => {
    const size = reader.number(prefix);
    if (size > cap) throw malformed(`${size} bytes where ${cap} are the most`);
    return reader.take(size);
  },
});
export const blob = blobOf(4, 2 ** 32);
const blob64 = blobOf(8, Number.MAX_SAFE_INTEGER);
const textOf = (cap) => {
  const inner = blobOf(4, cap);
  return {
    write: (value) => inner.write(utf8(value)),
    read: (reader) => {
      try {
        return STRICT_UTF8.decode(inner.read(reader));
      } catch (error) {
        throw error instanceof TypeError ? malformed("text is not UTF-8") : error;
      }
    },
  };
};
export const text = textOf(2 ** 32);
const id = textOf(MAX_ID_BYTES);
export const list = (item, cap = MAX_ITEMS) => ({
  write: (values) => concat(uint(4, values.length), ...values.map((value) => item.write(value))),
  read: (reader) => {
    const count = reader.number(4);
    if (count > cap) throw malformed(`a list of ${count}, where ${cap} are the most`);
    return Array.from({ length: count }, () => item.read(reader));
  },
});
const rest = { rest: true, write: (value) => value };

/** Several named fields in order; `rest` leaves as many bytes as the fixed fields behind it take. */
export function record(fields, check = () => {}) {
  const behind = (index) => fields.slice(index + 1).reduce((sum, [, type]) => sum + type.size, 0);
  return {
    fields,
    write: (value, until = fields.length) =>
      concat(...fields.slice(0, until).map(([name, type]) => type.write(value[name]))),
    read: (reader) => {
      const value = {};
      fields.forEach(([name, type], index) => {
        if (type.rest) {
          if (reader.left < behind(index)) throw malformed("the bytes end too early");
          value[name] = reader.take(reader.left - behind(index));
        } else value[name] = type.read(reader);
      });
      check(value);
      return value;
    },
  };
}

/** Reads one value of a type, which must be all there is. */
export function readAll(type, data) {
  const reader = new Reader(data);
  const value = type.read(reader);
  if (reader.left > 0) throw malformed(`${reader.left} bytes too many`);
  return value;
}

const digest = bytes(32);
const signature = ["signature", bytes(64)];
const names = list(id);

export const Advert = record([
  ["site", id], ["mask_key", bytes(1216)], ["seal_key", bytes(1216)], ["commitment", digest], signature,
]);
export const Envelope = record([
  ["sender", id], ["recipient", id], ["sealed_seed", bytes(1168)], ["sealed_shares", bytes(1202)],
  ["mask_secret_share_digest", digest], ["self_mask_share_digest", digest], signature,
]);
export const SeedEnvelope = record([["sender", id], ["recipient", id], ["sealed_seed", bytes(1168)], signature]);
export const View = record([["site", id], signature]);
const KeyHello = record([["site", id], ["seal_key", blobOf(4, 1216)], signature]);
export const KeyPackage = record([["recipient", id], ["sealed_key", blobOf(4, 2 ** 20)], signature]);
const publicKey = ["public_key", blobOf(4, 2 ** 22)];
export const Choice = record([["site", id], ["holders", blobOf(4, 125)], ["threshold", u16], signature]);
const Share = record([["peer", id], ["kind", u8], ["share", bytes(33)]], ({ kind }) => {
  if (kind !== 1 && kind !== 2) throw malformed(`no share has the kind ${kind}`);
});

/** Messages by name: their type, and their fields. */
export const MESSAGES = {
  Specification: [0, record([
    ["study", id], ["round", u32], ["exchange_index", u16], ["exchange", id], ["attempt", u32],
    ["cohort", names], ["threshold", u16], ["roster_digest", digest], ["layout_digest", digest],
    ["broadcast_digest", digest], signature,
  ])],
  Advert: [1, Advert],
  Adverts: [2, record([["adverts", list(Advert)]])],
  Sharing: [3, record([["envelopes", list(Envelope)]])],
  Deliveries: [4, record([["envelopes", list(Envelope)]])],
  Upload: [5, record([
    ["padding", zeros(6)], ["vector", rest], ["sharing_digest", digest], ["vector_digest", digest], signature,
  ])],
  Survivors: [6, record([["survivors", names]])],
  View: [7, View],
  UnmaskRequest: [8, record([["dropped", names], ["views", list(View)]])],
  Shares: [9, record([["shares", list(Share)], signature], ({ shares }) => {
    if (!ascending(shares.map((share) => share.peer))) throw malformed("shares are out of order");
  })],
  Result: [10, record([["spec_digest", digest], ["survivors", names], ["totals_digest", digest], signature])],
  KeyHello: [11, KeyHello],
  KeyRequest: [12, record([["hellos", list(KeyHello)]])],
  KeyPackages: [13, record([publicKey, ["packages", list(KeyPackage)]])],
  KeyDelivery: [14, record([publicKey, ["package", KeyPackage]])],
  StateView: [16, record([["site", id], ["sums", u32], ["state_digest", digest], signature])],
  ClosedSum: [26, record([
    ["spec", blobOf(4, 2 ** 20)], ["result", blobOf(4, 2 ** 20)], ["adverts_digest", digest], ["vector", blob64],
  ])],
  FinalModel: [17, record([
    ["study", id], ["roster_digest", digest], ["round", u32], ["sums", u32], ["model_digest", digest],
    signature, ["model", blob64],
  ])],
  Confirmation: [18, record([["site", id], ["complaints", names], signature])],
  SharingSet: [19, record([["sharing", names]])],
  AdvertDigests: [20, record([["adverts", list(record([["site", id], ["digest", digest]]))]])],
  Choice: [21, Choice],
  Neighbourhood: [22, record([["adverts", list(Advert)], ["choices", list(Choice)]])],
  NeighbourSharing: [23, record([["envelopes", list(Envelope)], ["seeds", list(SeedEnvelope)]])],
  NeighbourDeliveries: [24, record([["envelopes", list(Envelope)], ["seeds", list(SeedEnvelope)]])],
  ProvenUnmaskRequest: [25, record([
    ["dropped", names], ["views", list(View)],
    ["uploads", list(record([["site", id], ["vector_digest", digest], signature]))],
  ])],
};

export const ExpectedState = record([["sums", u32], ["digest", digest]]);

export const MAGIC = utf8("secfed/v1");

/** Frames of section 7: a first byte, and fields. */
export const FRAMES = {
  1: record([["study", id], ["round", u32], ["exchange_index", u16], ["exchange", id], ["broadcast", rest]]),
  2: record([["round", u32], ["exchange_index", u16], ["attempt", u32], ["message", rest]]),
  3: record([["message", rest]]),
};

export const compareIds = (a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b));
export const ascending = (ids) => ids.every((one, at) => at === 0 || compareIds(ids[at - 1], one) < 0);
export const encodeNames = (ids) => names.write(ids);

export function encode(name, value) {
  const [type, fields] = MESSAGES[name];
  return concat(MAGIC, uint(1, type), fields.write(value));
}

/** The type of a message; malformed if the bytes do not begin as one. */
export function typeOf(data) {
  if (data.length <= MAGIC.length || !equal(data.subarray(0, MAGIC.length), MAGIC)) {
    throw malformed("not a message of this protocol version");
  }
  return data[MAGIC.length];
}

export function decode(name, data) {
  const [type, fields] = MESSAGES[name];
  if (typeOf(data) !== type) throw malformed("a message of another type");
  return readAll(fields, data.subarray(MAGIC.length + 1));
}

/** The fields before the signature, of a message or structure. */
export function body(type, value) {
  const fields = MESSAGES[type]?.[1] ?? type;
  return fields.write(value, fields.fields.findIndex(([name]) => name === "signature"));
}
