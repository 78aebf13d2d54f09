// Sections 12.1 and 13.1 of docs/protocol.md: how the group key of a study gets to its sites.
import { body, encode, KeyPackage, utf8 } from "./encoding.mjs";
import { malformed, ProtocolError } from "./errors.mjs";
import { digest, random, seal, SealKey, verify } from "./primitives.mjs";

const GROUP_KEY = 32;

/** One site's hold on the group key of one study. */
export class StudyKey {
  constructor({ identity, roster, study, sites, holder, draws = {} }) {
    const { groupKey = () => random(GROUP_KEY), sealKey = () => new SealKey(random(64), random(32)) } = draws;
    Object.assign(this, { identity, roster, sites, holder, draw: { groupKey, sealKey } });
    this.kappa = [utf8(study), roster.digest, digest("closed sums"), utf8(holder)];
    this.groupKey = this.sealKey = null;
  }

  get required() {
    if (this.groupKey === null) throw new ProtocolError("WrongState", "this site has no study key yet");
    return this.groupKey;
  }

  hello() {
    if (this.groupKey === null && this.identity.name === this.holder) this.groupKey = this.draw.groupKey();
    if (this.groupKey === null) this.sealKey ??= this.draw.sealKey();
    const asking = this.groupKey === null ? this.sealKey.publicKey : new Uint8Array(0);
    const hello = { site: this.identity.name, seal_key: asking };
    hello.signature = this.identity.sign("sign study key hello", ...this.kappa, body("KeyHello", hello));
    return encode("KeyHello", hello);
  }

  pack({ hellos }) {
    if (this.identity.name !== this.holder) throw new ProtocolError("WrongState", "another site holds the key");
    const check = digest("group key check", this.required);
    const packages = hellos.map((hello) => {
      const { site, seal_key: asking, signature } = hello;
      if (!this.sites.includes(site)) throw new ProtocolError("RosterError", `${site} is not in the study`);
      verify(this.roster.keys.get(site), signature, "sign study key hello", ...this.kappa, body("KeyHello", hello));
      const sealed = seal(asking, this.required, "seal study key", ...this.kappa, utf8(site));
      const made = { recipient: site, sealed_key: sealed };
      const parts = [...this.kappa, digest("study public key digest", check), body(KeyPackage, made)];
      return { ...made, signature: this.identity.sign("sign study key package", ...parts) };
    });
    return encode("KeyPackages", { public_key: check, packages });
  }

  unpack({ public_key: check, package: given }) {
    if (given.recipient !== this.identity.name || this.sealKey === null) {
      throw new ProtocolError("InconsistentView", "this site did not ask for this key");
    }
    const parts = [...this.kappa, digest("study public key digest", check), body(KeyPackage, given)];
    verify(this.roster.keys.get(this.holder), given.signature, "sign study key package", ...parts);
    const context = [...this.kappa, utf8(this.identity.name)];
    const groupKey = this.sealKey.open(given.sealed_key, "seal study key", ...context);
    const named = digest("group key check", groupKey);
    if (groupKey.length !== GROUP_KEY || Buffer.compare(named, check) !== 0) throw malformed("another key than is named");
    this.groupKey = groupKey;
    this.sealKey = null;
  }
}
