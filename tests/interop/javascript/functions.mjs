// The functions of vectors v1.1 that a site of masked sums has: node functions.mjs FUNCTIONS.json.
// tests/vectors/README.md has the operations.
import { readVectors } from "./playing.mjs";
import { tagsOf } from "./site/closing.mjs";
import { hex, unhex } from "./site/encoding.mjs";
import { toLanes } from "./site/layout.mjs";
import { CIPHERS, derive, digest, seal, verify } from "./site/primitives.mjs";
import { Roster } from "./site/roster.mjs";
import { holdersOf } from "./site/sparse.mjs";

const content = readVectors(process.argv[2]);
const words = (label) => label.replace(/^secfed\/v1 /, "");

const OPERATIONS = {
  roster: ({ encoding }) => {
    const roster = Roster.decode(unhex(encoding));
    return { digest: hex(roster.digest), sites: roster.ids };
  },
  verify: ({ public: key, label, parts, signature }) => {
    verify(unhex(key), unhex(signature), words(label), ...parts.map(unhex));
    return {};
  },
  seal: ({ public: key }) => {
    seal(unhex(key), new Uint8Array(0), "seal shares");
    return {};
  },
  holders: ({ roster, threshold, colluders, advertised, dropout_rate }) => {
    const made = holdersOf(roster, threshold, colluders, advertised, dropout_rate);
    return { holders: made.count, threshold: made.threshold };
  },
  stream: ({ cipher, key, at, size }) =>
    ({ bytes: hex(CIPHERS[cipher].stream(unhex(key), at + size).subarray(at)) }),
  tags: ({ group_key, specification_digest, advertised_set_digest, runs }) => {
    const lanes = runs.map(([bits, values]) => toLanes(values, bits));
    const shapes = runs.map(([bits, values]) => ({ bits, count: values.length }));
    const attempt = [unhex(specification_digest), unhex(advertised_set_digest)];
    return { tags: Array.from(tagsOf(unhex(group_key), attempt, lanes, shapes), String) };
  },
  "study key": ({ study_key, state }) => ({
    state_tag: hex(derive(unhex(study_key), "derive state tag", [digest("broadcast digest", unhex(state))])),
    group_key_check: hex(digest("group key check", unhex(study_key))),
    public_key_digest: hex(digest("study public key digest", unhex(study_key))),
  }),
};

let [failures, played] = [0, 0];
for (const { name, operation, input, output, fails } of content.cases) {
  if (!(operation in OPERATIONS)) continue;
  played += 1;
  let found;
  try {
    found = JSON.stringify(OPERATIONS[operation](input));
  } catch (error) {
    found = fails ? undefined : error.stack;
  }
  const expected = output && JSON.stringify(operation === "tags" ? { tags: output.tags.map(String) } : output);
  if (found === expected) continue;
  failures += 1;
  console.error(`${name}: ${found} in place of ${expected}`);
}
console.log(`${played - failures} of ${played} functions`);
process.exit(failures > 0 ? 1 : 0);
