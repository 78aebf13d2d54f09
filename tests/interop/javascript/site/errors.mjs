// What goes wrong: the refusals of SECURITY.md, with their class and their fixed text.

const REFUSALS = {
  1: ["MalformedMessage", "the bytes are not a well-formed message of this protocol version"],
  2: ["WrongState", "the message does not belong to the current state"],
  3: ["BadSignature", "the specification is not signed by the pinned aggregator"],
  4: ["RosterError", "the specification names another roster than the pinned one"],
  5: ["RosterError", "the cohort contains a site that is not in the pinned roster"],
  6: ["RosterError", "the cohort is not a strictly ordered list of sites"],
  7: ["RosterError", "the cohort does not contain this site"],
  8: ["PolicyRefused", "the cohort is below this site's minimum"],
  9: ["PolicyRefused", "the threshold is too low for this site or this cohort"],
  10: ["InconsistentView", "the specification is for another study, round or exchange"],
  11: ["Replay", "the round, exchange or attempt is not larger than the journal's"],
  12: ["Replay", "this update has already left the site in another attempt"],
  13: ["InconsistentView", "the layout is not the one this site derived from the study"],
  14: ["PolicyRefused", "the layout is larger than this site's policy permits"],
  15: ["InconsistentView", "the broadcast is not the one this site trained on"],
  16: ["PolicyRefused", "the privacy that this site's policy demands was not applied"],
  17: ["BadSignature", "an advertised key is not signed by its pinned identity"],
  18: ["RosterError", "an advertised key comes from outside the cohort"],
  19: ["InconsistentView", "advertised keys are out of order or repeated"],
  20: ["InconsistentView", "a key or commitment is advertised twice"],
  21: ["InconsistentView", "this site's own keys are missing or altered"],
  22: ["UnmaskRefused", "fewer sites advertised keys than the threshold"],
  23: ["BadSignature", "an envelope is not signed by its sender for this attempt"],
  24: ["InconsistentView", "an envelope or a member of the sharing set is unadvertised, repeated, missing or misaddressed"],
  25: ["MalformedMessage", "this site complained of an envelope that cannot be opened or does not hold the shares it states"],
  26: ["UnmaskRefused", "fewer sites shared secrets than the threshold"],
  27: ["InconsistentView", "the survivors are not an ordered subset of the sharing set"],
  28: ["InconsistentView", "this site uploaded but is not among the survivors"],
  29: ["UnmaskRefused", "fewer survivors than the threshold"],
  30: ["BadSignature", "a consistency signature does not verify for this site's own view"],
  31: ["InconsistentView", "a consistency signature is not from a survivor, or is repeated"],
  32: ["UnmaskRefused", "fewer matching consistency signatures than the threshold"],
  33: ["UnmaskRefused", "the dropped sites are not the complement of the signed survivors"],
  34: ["UnmaskRefused", "shares were already given out in this attempt"],
  35: ["BadSignature", "the result is not signed by the pinned aggregator"],
  36: ["InconsistentView", "the result is for another attempt or another set of survivors"],
  37: ["Replay", "this site's journal was replaced or does not know the attempt"],
  38: ["PolicyRefused", "the study does not ask a site of the cohort in this exchange"],
  39: ["PolicyRefused", "too few of the sites add more than zeros to a part of this sum"],
  40: ["BadSignature", "the final model is not signed by the pinned aggregator"],
  41: ["InconsistentView", "the final model is of another study or roster, not what was signed, or not this site's"],
  42: ["InconsistentView", "the first broadcast is not the model that the study begins with"],
  43: ["MalformedMessage", "the broadcast holds a number that is not finite or beyond the study's bound"],
  44: ["MalformedMessage", "the broadcast has other names or shapes than this study's"],
  45: ["InconsistentView", "what was relayed is not the sum of the uploads that the result names"],
  46: ["Replay", "a sparse graph is not drawn so often for one exchange"],
  47: ["BadSignature", "a choice of holders is not signed by its site for this attempt"],
  48: ["InconsistentView", "the neighbourhood is not this site's holders and the sites that chose it, with the keys advertised"],
  49: ["InconsistentView", "a survivor whose share this site holds did not sign its upload for the same sharing set"],
};

// What leaves of an error that has no number.
const TEXTS = {
  MalformedMessage: "the message is not well formed",
  Replay: "this was asked before",
  InconsistentView: "the message contradicts what this site knows of the study",
};
const OTHER = ["SecfedError", "this site cannot do this now"];

/** An error of the protocol: its class, the number of the refusal where it has one, and the sites that it names. */
export class ProtocolError extends Error {
  constructor(kind, message, refusal = null, named = "") {
    super(message);
    this.name = this.kind = kind;
    this.refusal = refusal;
    this.named = named;
  }
}

export const malformed = (message) => new ProtocolError("MalformedMessage", message);

/** Ends an attempt with refusal R`number`, unless `holds`. The detail stays at this site; names of sites leave. */
export function require(holds, number, detail, named = "") {
  if (holds) return;
  const [kind, text] = REFUSALS[number];
  throw new ProtocolError(kind, `refusal ${number}: ${text}: ${detail}`, number, named);
}

/** [kind, reason] of the link's Refuse: a code and its fixed text, never the words of an error. */
export function outgoing(error) {
  if (error.refusal) {
    const [kind, text] = REFUSALS[error.refusal];
    return [kind, `refusal ${error.refusal}: ${text}${error.named && ` (${error.named})`}`];
  }
  return error.kind in TEXTS ? [error.kind, TEXTS[error.kind]] : OTHER;
}
