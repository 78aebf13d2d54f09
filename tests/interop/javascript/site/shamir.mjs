// Section 6.5 of docs/protocol.md.
import { uint } from "./encoding.mjs";
import { ProtocolError } from "./errors.mjs";
import { random } from "./primitives.mjs";

export const PRIME = 2n ** 256n + 297n;
const SECRET_LIMIT = 2n ** 256n;

export const toInteger = (data) => data.reduce((sum, byte) => (sum << 8n) | BigInt(byte), 0n);
const modulo = (value) => ((value % PRIME) + PRIME) % PRIME;

/** threshold - 1 integers, uniform below the prime: 33 random bytes, cut to 257 bits, until they are. */
export function coefficients(threshold) {
  return Array.from({ length: threshold - 1 }, () => {
    for (;;) {
      const value = toInteger(random(33)) & (2n ** 257n - 1n);
      if (value < PRIME) return value;
    }
  });
}

export function share(secret, chosen, coordinate) {
  const x = BigInt(coordinate);
  const value = [toInteger(secret), ...chosen].reduceRight((sum, a) => modulo(sum * x + a), 0n);
  return uint(33, value);
}

function inverse(value) {
  let result = 1n;
  for (let base = modulo(value), power = PRIME - 2n; power > 0n; power >>= 1n, base = modulo(base * base)) {
    if (power & 1n) result = modulo(result * base);
  }
  return result;
}

/** The secret of `threshold` shares, a map from coordinate to share; only a server needs it. */
export function combine(shares, threshold) {
  const fail = (message) => new ProtocolError("RangeError", message);
  const points = [...shares].slice(0, threshold).map(([x, data]) => [BigInt(x), toInteger(data), data.length]);
  if (points.length < threshold) throw fail("too few shares");
  if (points.some(([, y, size]) => y >= PRIME || size !== 33)) throw fail("a share is not in the field");
  const secret = modulo(points.reduce((sum, [x, y]) => {
    const others = points.filter(([other]) => other !== x);
    const above = others.reduce((product, [other]) => modulo(product * other), 1n);
    const below = others.reduce((product, [other]) => modulo(product * (other - x)), 1n);
    return sum + y * above * inverse(below);
  }, 0n));
  if (secret >= SECRET_LIMIT) throw fail("the shares give no secret");
  return uint(32, secret);
}
