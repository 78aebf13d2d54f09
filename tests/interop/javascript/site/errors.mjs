// What goes wrong, by the names of SECURITY.md's table of refusals.

const CLASS_OF_REFUSAL = {
  1: "MalformedMessage", 2: "WrongState", 3: "BadSignature", 4: "RosterError", 5: "RosterError",
  6: "RosterError", 7: "RosterError", 8: "PolicyRefused", 9: "PolicyRefused", 10: "InconsistentView",
  11: "Replay", 12: "Replay", 13: "InconsistentView", 14: "PolicyRefused", 15: "InconsistentView",
  16: "PolicyRefused", 17: "BadSignature", 18: "RosterError", 19: "InconsistentView",
  20: "InconsistentView", 21: "InconsistentView", 22: "UnmaskRefused", 23: "BadSignature",
  24: "InconsistentView", 25: "MalformedMessage", 26: "UnmaskRefused", 27: "InconsistentView",
  28: "InconsistentView", 29: "UnmaskRefused", 30: "BadSignature", 31: "InconsistentView",
  32: "UnmaskRefused", 33: "UnmaskRefused", 34: "UnmaskRefused", 35: "BadSignature",
  36: "InconsistentView", 37: "Replay", 38: "PolicyRefused", 39: "PolicyRefused", 40: "BadSignature",
  41: "InconsistentView", 43: "MalformedMessage", 44: "MalformedMessage",
};

/** An error of the protocol: its class, and the number of the refusal where it has one. */
export class ProtocolError extends Error {
  constructor(kind, message, refusal = null) {
    super(refusal === null ? message : `refusal ${refusal}: ${message}`);
    this.name = this.kind = kind;
    this.refusal = refusal;
  }
}

export const malformed = (message) => new ProtocolError("MalformedMessage", message);

/** Ends an attempt with refusal R`number`, unless `holds`. */
export function require(holds, number, message) {
  if (!holds) throw new ProtocolError(CLASS_OF_REFUSAL[number], message, number);
}
