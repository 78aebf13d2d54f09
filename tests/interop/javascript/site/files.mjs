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

/** Which attempts began, uploaded and gave out shares. One process uses one journal. */
export class Journal {
  constructor(path) {
    this.lines = new Lines(path);
    this.marks = this.lines.lines.map((line) => JSON.parse(line));
  }
  begin(spec) {
    require(this.lines.intact, 37, "the journal was replaced");
    require(!this.#has("uploaded", this.#exchange(spec)), 12, "this update has left");
    require(!this.#later(spec, true), 11, "not later than the journal's newest attempt");
    this.#mark("begun", spec);
  }
  uploaded(spec) {
    require(this.lines.intact && this.#has("begun", this.#attempt(spec)), 37, "the journal does not know the attempt");
    require(!this.#later(spec, false), 11, "a later attempt has begun");
    require(!this.#has("uploaded", this.#exchange(spec)), 12, "this update has left");
    this.#mark("uploaded", spec);
  }
  unmasked(spec) {
    require(this.lines.intact && this.#has("begun", this.#attempt(spec)), 37, "the journal does not know the attempt");
    require(!this.#later(spec, false), 11, "a later attempt has begun");
    require(!this.#has("unmasked", this.#attempt(spec)), 34, "shares were given out");
    require(this.#has("uploaded", this.#attempt(spec)), 37, "no upload in this attempt");
    this.#mark("unmasked", spec);
  }

  #exchange = ({ study, round, exchange_index }) => [study, round, exchange_index];
  #attempt = (spec) => [...this.#exchange(spec), spec.attempt];
  #has(mark, place) {
    return this.marks.some((one) => one.mark === mark && place.every((value, at) => one.place[at] === value));
  }
  /** Whether an attempt of the study stands in the journal that is later, or equal where `orEqual`. */
  #later(spec, orEqual) {
    const place = this.#attempt(spec);
    return this.marks.some(({ place: [study, ...numbers] }) => {
      if (study !== place[0]) return false;
      const at = numbers.findIndex((value, index) => value !== place[index + 1]);
      return at === -1 ? orEqual : numbers[at] > place[at + 1];
    });
  }
  #mark(mark, spec) {
    const entry = { mark, place: this.#attempt(spec) };
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
