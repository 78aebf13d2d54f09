// What a site keeps on its disk: the journal of section 9 of docs/protocol.md, and a chain of docs/records.md.
import { closeSync, existsSync, fstatSync, fsyncSync, openSync, readFileSync, statSync, writeSync } from "node:fs";
import { compareIds, hex, unhex, utf8 } from "./encoding.mjs";
import { require } from "./errors.mjs";
import { digest } from "./primitives.mjs";

/** Lines that are on the disk when `append` returns. */
class Lines {
  constructor(path) {
    this.path = path;
    this.lines = existsSync(path) ? readFileSync(path, "utf8").split("\n").slice(0, -1) : [];
    this.file = openSync(path, "a", 0o600);
    this.size = fstatSync(this.file).size;
  }
  append(line) {
    const data = Buffer.from(`${line}\n`);
    writeSync(this.file, data);
    fsyncSync(this.file);
    this.size += data.length;
    this.lines.push(line);
  }
  /** Whether the path still names the file that was opened, and nothing was cut off. */
  get intact() {
    if (!existsSync(this.path)) return false;
    const [opened, named] = [fstatSync(this.file), statSync(this.path)];
    return opened.ino === named.ino && opened.dev === named.dev && named.size === this.size;
  }
  close() {
    closeSync(this.file);
  }
}

const placeOf = ({ study, round, exchange_index, attempt }) => [study, round, exchange_index, attempt];
const compare = (a, b) => a.map((value, at) => value - b[at]).find((difference) => difference !== 0) ?? 0;

/** Which attempts began, uploaded and gave out shares. One process uses one journal. */
export class Journal {
  constructor(path) {
    this.lines = new Lines(path);
    this.marks = this.lines.lines.map((line) => JSON.parse(line));
  }
  /** Whether the update of an exchange has left. */
  left(...exchange) {
    return this.marks.some(({ mark, place }) => mark === "uploaded" && exchange.every((value, at) => value === place[at]));
  }
  begin(spec) {
    this.#check();
    require(!this.left(spec.study, spec.round, spec.exchange_index), 12, "this update has left");
    require(this.#newest(spec) < 0, 11, "not later than the journal's newest attempt");
    this.#mark("begun", spec);
  }
  uploaded(spec) {
    this.#checkNewest(spec);
    require(!this.#has("uploaded", spec), 12, "it has left");
    this.#mark("uploaded", spec);
  }
  unmasked(spec) {
    this.#checkNewest(spec);
    require(!this.#has("unmasked", spec), 34, "shares were given out");
    require(this.#has("uploaded", spec), 37, "no upload in this attempt");
    this.#mark("unmasked", spec);
  }

  #check() {
    require(this.lines.intact, 37, "the journal was replaced");
  }
  #checkNewest(spec) {
    this.#check();
    require(this.#newest(spec) >= 0, 37, "the journal does not know the attempt");
    require(this.#newest(spec) === 0, 11, "a later attempt has begun");
  }
  /** Below 0 if the newest attempt of the study is before this one, or there is none; 0 if it is this one. */
  #newest(spec) {
    const last = this.marks.findLast(({ mark, place }) => mark === "begun" && place[0] === spec.study);
    return last === undefined ? -1 : compare(last.place.slice(1), placeOf(spec).slice(1));
  }
  #has(mark, spec) {
    return this.marks.some((one) => one.mark === mark && canonical(one.place) === canonical(placeOf(spec)));
  }
  #mark(mark, spec) {
    const entry = { mark, place: placeOf(spec) };
    this.lines.append(JSON.stringify(entry));
    this.marks.push(entry);
  }
}

/** JSON with sorted keys, no spaces and ASCII only. Numbers here are integers. */
export function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value !== null && typeof value === "object") {
    const names = Object.keys(value).sort(compareIds);
    return `{${names.map((name) => `${canonical(name)}:${canonical(value[name])}`).join(",")}}`;
  }
  const escaped = (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return JSON.stringify(value).replace(/[^ -~]/g, escaped);
}

/** The signed chain of what this site took part in. */
export class Transcript {
  constructor(path, identity, opening) {
    this.lines = new Lines(path);
    this.identity = identity;
    if (this.lines.lines.length === 0) this.append("opened", { owner: identity.name, ...opening });
  }
  get bodies() {
    return this.lines.lines.map((line) => JSON.parse(line));
  }
  append(kind, body) {
    const seq = this.lines.lines.length;
    const prev = seq === 0 ? "0".repeat(64) : JSON.parse(this.lines.lines.at(-1)).hash;
    const content = canonical({ body, kind, owner: this.identity.name, seq });
    const hash = digest("transcript chain", unhex(prev), utf8(content));
    const signature = hex(this.identity.sign("sign transcript entry", hash));
    this.lines.append(canonical({ body, hash: hex(hash), kind, prev, seq, signature }));
  }
}
