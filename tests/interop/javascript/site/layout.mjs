// Sections 6.1 and 6.2 of docs/protocol.md: layouts, and from real numbers to integers.
import { concat, list, record, text, u32, u64, u8 } from "./encoding.mjs";
import { ProtocolError } from "./errors.mjs";
import { digest, keystream } from "./primitives.mjs";

const rangeError = (message) => new ProtocolError("RangeError", message);
const MAX_EXPONENT = 900;
const Fields = list(
  record([["name", text], ["shape", list(u64)], ["bound", text], ["bits", u8]]),
  2 ** 32, // a layout never travels
);

/** Sign, 53-bit integer mantissa and exponent of a finite float64 that is not 0: x = mantissa * 2^exponent. */
function parts(x) {
  const view = new DataView(new ArrayBuffer(8));
  view.setFloat64(0, Math.abs(x));
  const raw = view.getBigUint64(0);
  const biased = Number(raw >> 52n);
  const fraction = raw & (2n ** 52n - 1n);
  return biased === 0 ? [fraction, -1074] : [fraction + 2n ** 52n, biased - 1075];
}

/** C99 hexadecimal floating point with 13 fraction digits, of a number above 0 that is not subnormal. */
export function hexFloat(x) {
  const [mantissa, exponent] = parts(x);
  const power = exponent + 52;
  const fraction = (mantissa - 2n ** 52n).toString(16).padStart(13, "0");
  return `0x1.${fraction}p${power < 0 ? "-" : "+"}${Math.abs(power)}`;
}

/** 2^exponent, exactly. */
export function pow2(exponent) {
  const view = new DataView(new ArrayBuffer(8));
  view.setBigUint64(0, BigInt(exponent + 1023) << 52n);
  return view.getFloat64(0);
}

/** The rule by which one field becomes integers. */
export class FixedPoint {
  constructor(bound, bits, sites) {
    if (!(Number.isInteger(bits) && ((bits >= 8 && bits <= 32) || bits === 64))) {
      throw rangeError(`no lanes of ${bits} bits`);
    }
    if (!(bound > 0 && Number.isFinite(bound))) throw rangeError("a bound must be above 0");
    const ring = 2n ** BigInt(bits - 1) - 1n;
    const limit = (ring < 2n ** 53n ? ring : 2n ** 53n) / BigInt(sites);
    if (limit < 2n) throw rangeError("the lanes have no room for so many sites");
    const [mantissa, exponent] = parts(bound);
    const scaled = (shift) => (shift >= 0 ? mantissa << BigInt(shift) : -(-mantissa >> BigInt(-shift))); // up
    let shift = limit.toString(2).length - mantissa.toString(2).length + 1;
    while (shift >= 0 ? scaled(shift) > limit : mantissa > limit << BigInt(-shift)) shift -= 1;
    this.exponent = shift - exponent;
    if (Math.abs(this.exponent) > MAX_EXPONENT) throw rangeError("the bound is too large or too small");
    this.bound = bound;
    this.bits = bits;
    this.sites = sites;
    this.largest = scaled(shift); // ceil(B * 2^e)
  }

  /** The lane of a value and a random 32-bit word, as a BigInt. */
  quantise(value, word) {
    if (!Number.isFinite(value)) throw rangeError("a value is not finite");
    const x = Math.min(Math.max(value, -this.bound), this.bound);
    const scaled = this.bits === 64 ? x * pow2(this.exponent) * 2 ** 32 : x * pow2(this.exponent + 32);
    const q = (BigInt(Math.floor(scaled)) + BigInt(word)) >> 32n;
    return BigInt.asUintN(this.bits, q);
  }

  /** The total of a summed lane. */
  decode(lane, survivors) {
    const q = BigInt.asIntN(this.bits, BigInt(lane));
    const magnitude = q < 0n ? -q : q;
    if (magnitude > BigInt(survivors) * this.largest) throw rangeError("a sum is out of range");
    return Number(q) * pow2(-this.exponent);
  }
}

/** Fields (name, shape, bound, bits), in the order of the study; `sites` is the size of the roster. */
export class Layout {
  constructor(fields, sites) {
    const widths = [...new Set(fields.map(({ bits }) => bits))];
    this.fields = widths.flatMap((width) => fields.filter(({ bits }) => bits === width)); // wire order
    this.sizes = this.fields.map(({ shape }) => shape.reduce((product, size) => product * size, 1));
    this.rules = this.fields.map(({ bound, bits }) => new FixedPoint(bound, bits, sites));
    const of = (width) => this.sizes.filter((_, at) => this.fields[at].bits === width);
    this.runs = widths.map((bits) => ({ bits, count: of(bits).reduce((sum, size) => sum + size, 0) }));
    this.elements = this.runs.reduce((sum, { count }) => sum + count, 0);
    if (this.elements === 0) throw rangeError("a layout has at least one element");
    if (new Set(fields.map(({ name }) => name)).size < fields.length) throw rangeError("a name comes twice");
    const written = this.fields.map((field) => ({ ...field, bound: hexFloat(field.bound) }));
    this.digest = digest("layout digest", concat(u32.write(sites), Fields.write(written)));
  }

  /** Totals by name, as arrays of numbers, from summed lanes by run. */
  totals(lanes, survivors) {
    const left = lanes.map((run) => Array.from(run));
    return Object.fromEntries(this.fields.map(({ name, bits }, index) => {
      const run = left[this.runs.findIndex((one) => one.bits === bits)];
      const own = run.splice(0, this.sizes[index]);
      return [name, own.map((lane) => this.rules[index].decode(lane, survivors))];
    }));
  }

  /**
   * Lanes by run. `values` maps names to arrays of numbers, in row-major order; a field that has a value which is
   * not finite is zeros.
   */
  quantise(values, roundingKey) {
    const words = new DataView(keystream(roundingKey, 4 * this.elements).buffer);
    let at = 0;
    const lanes = this.runs.map(() => []);
    this.fields.forEach((field, index) => {
      const given = values[field.name];
      if (given.length !== this.sizes[index]) throw rangeError(`${field.name} has another size`);
      const usable = given.every(Number.isFinite) ? given : given.map(() => 0);
      const run = this.runs.findIndex(({ bits }) => bits === field.bits);
      for (const value of usable) {
        lanes[run].push(this.rules[index].quantise(value, words.getUint32(4 * at, true)));
        at += 1;
      }
    });
    return lanes.map((run, index) => toLanes(run, this.runs[index].bits));
  }
}

/** Lanes as a typed array: 32-bit words for all widths up to 32. */
export const toLanes = (values, bits) =>
  bits === 64 ? BigUint64Array.from(values, BigInt) : Uint32Array.from(values, Number);

