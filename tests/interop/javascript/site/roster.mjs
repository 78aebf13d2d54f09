// Section 5 of docs/protocol.md: who is there.
import { ascending, bytes, concat, hex, list, readAll, record, text } from "./encoding.mjs";
import { ProtocolError } from "./errors.mjs";
import { digest } from "./primitives.mjs";

const Encoding = record([["aggregator", bytes(32)], ["sites", list(record([["id", text], ["key", bytes(32)]]))]]);

export class Roster {
  constructor(aggregator, sites) {
    this.aggregator = aggregator;
    this.ids = sites.map(({ id }) => id);
    this.keys = new Map(sites.map(({ id, key }) => [id, key]));
    const lengths = this.ids.map((id) => Buffer.byteLength(id));
    const different = new Set([aggregator, ...this.keys.values()].map(hex)).size === sites.length + 1;
    if (!(sites.length >= 1 && lengths.every((size) => size >= 1 && size <= 200) && different && ascending(this.ids))) {
      throw new ProtocolError("RosterError", "not a roster: ids must ascend, and all keys differ");
    }
    this.encoding = concat(Encoding.write({ aggregator, sites }));
    this.digest = digest("roster digest", this.encoding);
    this.positions = new Map(this.ids.map((id, at) => [id, at]));
  }
  static decode(data) {
    const { aggregator, sites } = readAll(Encoding, data);
    return new Roster(aggregator, sites);
  }
  position(id) {
    return this.positions.get(id);
  }
}
