// Section 7, "In a sparse graph", and section 10.7 of docs/protocol.md.
import {
  ascending, body, Choice, concat, encode, encodeNames, equal, utf8,
} from "./encoding.mjs";
import { require } from "./errors.mjs";
import { MaskedSite } from "./masked.mjs";
import { digest } from "./primitives.mjs";

const ATTEMPTS = 16;
const BITS = 40 + Math.log2(ATTEMPTS);
const LOST_SUMS = Math.log2(1e-3);
const ROUNDING = 1e-6;

const logFactorials = [0];
function logFactorial(n) {
  for (let k = logFactorials.length; k <= n; k++) logFactorials.push(logFactorials[k - 1] + Math.log2(k));
  return logFactorials[n];
}
const logChoose = (n, k) => logFactorial(n) - logFactorial(k) - logFactorial(n - k);

/** log2 of the probability that at least `least` of `drawn` out of `population` are among `marked`. */
function logTail(population, marked, drawn, least) {
  if (least <= Math.max(0, drawn + marked - population)) return 0;
  let total = 0;
  const terms = [];
  for (let hits = least; hits <= Math.min(marked, drawn); hits++) {
    terms.push(logChoose(marked, hits) + logChoose(population - marked, drawn - hits));
  }
  if (terms.length === 0) return -Infinity;
  const top = Math.max(...terms);
  for (const term of terms) total += 2 ** (term - top);
  return Math.min(0, top + Math.log2(total) - logChoose(population, drawn) + ROUNDING);
}

/** k and τ for `m` advertised sites of a roster of `n`. */
export function holdersOf(n, t, c, m, dropoutRate) {
  const dropped = Math.ceil(dropoutRate * (m - 1));
  const lost = (k, tau) => Math.log2(m) + logTail(m - 1, dropped, k, k - tau + 1);
  const hidden = (k, tau, size) => {
    const sets = size === 1 ? Math.log2(n) : logChoose(n - c, size);
    return sets + size * logTail(m - 1, size - 1 + c, k, tau) + ROUNDING <= -(BITS + size);
  };
  const sizes = Array.from({ length: Math.max(0, t - c - 1) }, (_, at) => at + 1);
  for (let k = 1; k < m - 1; k++) {
    let tau = k;
    while (tau > 0 && lost(k, tau) > LOST_SUMS) tau -= 1;
    if (tau > 0 && sizes.every((size) => hidden(k, tau, size))) return { count: k, threshold: tau };
  }
  return { count: m - 1, threshold: t - 1 };
}

const bitsOf = (sites, advertised) => {
  const bits = new Uint8Array(Math.ceil(advertised.length / 8));
  advertised.forEach((site, at) => (bits[at >> 3] |= sites.includes(site) ? 1 << (at & 7) : 0));
  return bits;
};

/** The holders of a choice; none if nobody can have made it. */
function chosen({ site, holders, threshold }, advertised) {
  const found = advertised.filter((_, at) => (holders[at >> 3] ?? 0) & (1 << (at & 7)));
  const whole = equal(bitsOf(found, advertised), holders) && !found.includes(site);
  return whole && threshold >= 1 && threshold <= found.length ? found : [];
}

const lineDigest = (advert) => digest("advert digest", encode("Advert", advert));

/** One site in one attempt, in a sparse graph. */
export class SparseSite extends MaskedSite {
  constructor(options) {
    super(options);
    this.dropoutRate = options.work.graph.dropout_rate;
    this.following = {
      advert: "await AdvertDigests", sharing: "await NeighbourDeliveries", view: "await ProvenUnmaskRequest",
    };
  }

  admit({ attempt }) {
    require(attempt < ATTEMPTS, 46, `attempt ${attempt}`);
  }

  listed({ adverts }, message) {
    const sites = this.advertisedSet(adverts);
    const own = adverts.find(({ site }) => site === this.name);
    require(own && equal(own.digest, lineDigest(this.own)), 21, "the own advert is missing or altered");
    require(sites.length >= this.spec.threshold, 22, `${sites.length} adverts`);
    this.alpha = digest("advertised set digest", message);
    this.lines = adverts;
    const { colluders } = this.policy;
    const wanted = holdersOf(this.roster.ids.length, this.spec.threshold, colluders, sites.length, this.dropoutRate);
    const left = sites.filter((site) => site !== this.name);
    const drawn = Array.from({ length: wanted.count }, () => left.splice(this.draws.pick(left.length), 1)[0]);
    const holders = sites.filter((site) => drawn.includes(site));
    this.peers = { advertised: sites, holders, threshold: wanted.threshold };
    const choice = { site: this.name, holders: bitsOf(holders, sites), threshold: wanted.threshold };
    choice.signature = this.sign("sign choice of holders", this.sigma, this.alpha, body(Choice, choice));
    return [encode("Choice", choice), "await Neighbourhood"];
  }

  introduced({ adverts, choices }) {
    const { advertised, holders } = this.peers;
    const dealers = choices.map(({ site }) => site);
    const known = dealers.every((site) => site !== this.name && advertised.includes(site));
    require(ascending(dealers) && known, 48, "choices");
    for (const choice of choices) {
      const parts = [this.sigma, this.alpha, body(Choice, choice)];
      require(this.verified(choice.site, choice.signature, "sign choice of holders", ...parts), 47, choice.site);
      require(chosen(choice, advertised).includes(this.name), 48, `the choice of ${choice.site}`);
    }
    const neighbours = advertised.filter((site) => holders.includes(site) || dealers.includes(site));
    const written = (lines) => concat(...lines.flatMap((line) => [utf8(line.site), line.digest]));
    const expected = this.lines.filter(({ site }) => neighbours.includes(site));
    const found = adverts.map((advert) => ({ site: advert.site, digest: lineDigest(advert) }));
    require(found.length === expected.length && equal(written(found), written(expected)), 48, "adverts");
    this.checkSigned(adverts);
    this.checkFresh([this.own, ...adverts]);
    Object.assign(this.peers, { neighbours, dealers });
    return [encode("NeighbourSharing", this.deal(adverts)), this.following.sharing];
  }

  strangers(survivors) {
    return survivors - this.spec.threshold;
  }

  proven({ dropped, views, uploads }) {
    const dealers = this.survivors.filter((site) => this.held.get(site)?.selfShare !== undefined);
    const same = equal(encodeNames(uploads.map(({ site }) => site)), encodeNames(dealers));
    require(same, 49, "not exactly the dealers");
    const sharing = digest("sharing set digest", encodeNames(this.sharing));
    for (const { site, vector_digest, signature } of uploads) {
      const parts = [this.sigma, this.alpha, sharing, vector_digest];
      require(this.verified(site, signature, "sign upload", ...parts), 49, site);
    }
    return this.asked({ dropped, views });
  }
}
