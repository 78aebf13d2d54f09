// Section 13.2 of docs/protocol.md: tags of a vector, and the stream that closes it.
import { utf8 } from "./encoding.mjs";
import { malformed, require } from "./errors.mjs";
import { mask, unpack, wireSize } from "./lanes.mjs";
import { derive, keystream } from "./primitives.mjs";

const TAGS = 12;
const COLUMNS = 1024;
const TAG_RUN = { bits: 64, count: TAGS };

/** The tags of lanes, for one attempt [σ, α]. */
export function tagsOf(groupKey, attempt, lanes, runs) {
  const rows = runs.map(({ bits, count }) => (bits === 64 ? count : Math.ceil(count / COLUMNS)));
  const size = (COLUMNS + rows.reduce((sum, some) => sum + some, 0)) * TAGS;
  const stream = new DataView(keystream(derive(groupKey, "derive closing tags", attempt), 2 * size).buffer);
  const coefficient = (row, j) => BigInt(stream.getUint16(2 * (row * TAGS + j), true) & 2047);
  const tags = new Array(TAGS).fill(0n);
  let row = COLUMNS; // behind the columns' coefficients
  runs.forEach(({ bits }, index) => {
    const signed = Array.from(lanes[index], (lane) => BigInt.asIntN(bits, BigInt(lane)));
    const width = bits === 64 ? 1 : COLUMNS;
    for (let at = 0; at < signed.length; at += width, row++) {
      for (let j = 0; j < TAGS; j++) {
        const cells = signed.slice(at, at + width);
        const inner = bits === 64 ? cells[0] : cells.reduce((sum, lane, m) => sum + coefficient(m, j) * lane, 0n);
        tags[j] += coefficient(row, j) * inner;
      }
    }
  });
  return BigUint64Array.from(tags, (tag) => BigInt.asUintN(64, tag));
}

/** A site's lanes and tags under its closing stream, and their runs. */
export function closingLanes(groupKey, attempt, site, lanes, runs, context, cipher) {
  const [whole, all] = [[...runs, TAG_RUN], [...lanes, tagsOf(groupKey, attempt, lanes, runs)]];
  const seed = derive(groupKey, "derive closing seed", [...attempt, utf8(site)]);
  mask(all, whole, seed, "derive closing stream", context, 1, cipher);
  return { lanes: all, runs: whole };
}

/** The survivors' sum from a closed one, by run. */
export function openLanes(groupKey, attempt, survivors, vector, runs, context, cipher) {
  const whole = [...runs, TAG_RUN];
  let at = 0;
  const lanes = whole.map((run) => {
    const part = vector.subarray(at, (at += wireSize(run)));
    return unpack(part, run);
  });
  if (at !== vector.length) throw malformed("a closed sum has another length");
  for (const site of survivors) {
    const seed = derive(groupKey, "derive closing seed", [...attempt, utf8(site)]);
    mask(lanes, whole, seed, "derive closing stream", context, -1, cipher);
  }
  const tags = lanes.pop();
  require(tagsOf(groupKey, attempt, lanes, runs).join() === tags.join(), 45, "the tags do not fit");
  return lanes;
}
