// Type 17 of docs/protocol.md, section 7.
import { body, decode, equal } from "./encoding.mjs";
import { require } from "./errors.mjs";
import { sha256, verifies } from "./primitives.mjs";
import { readTensors } from "./safetensors.mjs";

/** The finished model, if it is the study's and what the aggregator signed. */
export function openFinalModel(message, roster, study) {
  const wellFormed = (read) => {
    try {
      return read();
    } catch (error) {
      return require(false, 1, error.message);
    }
  };
  const final = wellFormed(() => decode("FinalModel", message));
  const signed = verifies(roster.aggregator, final.signature, "sign final model", body("FinalModel", final));
  require(signed, 40, "the final model is not signed by the pinned aggregator");
  require(final.study === study && equal(final.roster_digest, roster.digest), 41, "of another study or roster");
  require(equal(final.model_digest, sha256(final.model)), 41, "not what was signed");
  wellFormed(() => readTensors(final.model)); // last: nothing unsigned is read that far
  return final;
}
