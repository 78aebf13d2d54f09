// One hospital: node main.mjs CONFIGURATION.json. See README.md for what the configuration holds.
import { createPrivateKey } from "node:crypto";
import { mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { compareIds, hex, unhex } from "./site/encoding.mjs";
import { Journal, Transcript } from "./site/files.mjs";
import { Hospital } from "./site/hospital.mjs";
import { Link } from "./site/link.mjs";
import { LogisticRegression } from "./site/logistic_regression.mjs";
import { Identity } from "./site/primitives.mjs";
import { Roster } from "./site/roster.mjs";

const ED25519_SEED = -32; // the last bytes of its PKCS #8 form

const given = JSON.parse(readFileSync(process.argv[2], "utf8"));
const read = (path) => readFileSync(path);
const seed = createPrivateKey(read(given.identity_key)).export({ type: "pkcs8", format: "der" }).subarray(ED25519_SEED);
const identity = new Identity(given.site, new Uint8Array(seed));
const pinned = JSON.parse(read(given.pinned_roster));
const sites = Object.keys(pinned.sites).sort(compareIds).map((id) => ({ id, key: unhex(pinned.sites[id]) }));
const roster = new Roster(unhex(pinned.aggregator), sites);
if (hex(roster.digest) !== given.roster_digest) throw new Error("the roster is not the pinned one");

mkdirSync(given.folder, { recursive: true, mode: 0o700 });
const opening = { study: given.study, roster_digest: given.roster_digest };
const transcript = new Transcript(join(given.folder, "transcript.jsonl"), identity, opening);
if (transcript.bodies.length === 1) transcript.append("settings", given.settings);
const hospital = new Hospital({
  identity, roster, transcript, study: given.study, folder: given.folder, policy: given.policy,
  cipher: given.keystream,
  graph: given.graph,
  program: new LogisticRegression(JSON.parse(read(given.records)), given.program),
  journal: new Journal(join(given.folder, "journal.jsonl")),
});
const tls = { ca: read(given.ca), key: read(given.tls_key), certificate: read(given.certificate) };
const link = new Link(given.proto, given.address, tls, given.study, given.max_frame_bytes);
await link.serve((frame) => hospital.handle(frame), (line) => console.error(line));
link.close();
