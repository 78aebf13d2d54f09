// Sections 7 and 8 of docs/protocol.md: one site in one attempt. Sans-I/O but for the journal it is given.
import { randomInt } from "node:crypto";
import {
  Advert, ascending, body, concat, decode, encode, encodeNames, Envelope, equal, hex, MESSAGES, SeedEnvelope, typeOf, utf8,
} from "./encoding.mjs";
import { ProtocolError, require } from "./errors.mjs";
import { closingLanes } from "./closing.mjs";
import { mask, packAll, vectorDigest } from "./lanes.mjs";
import { derive, digest, random, seal, SealKey, verifies } from "./primitives.mjs";
import { coefficients, share } from "./shamir.mjs";

const SHARE = 33;
const [OF_SELF_MASK, OF_MASK_SECRET] = [1, 2];

/** Every random draw of an attempt. */
export class Draws {
  maskSecret = () => random(32);
  selfSeed = () => random(32);
  sealKey = () => new SealKey(random(64), random(32));
  coefficients = (_which, threshold) => coefficients(threshold);
  pick = (limit) => randomInt(limit);
  seal = (_recipient, _part, ...sealed) => seal(...sealed);
}

// What each state takes: its message, and what handles it.
const STATES = {
  "await Specification": ["Specification", "specified"],
  "await Adverts": ["Adverts", "advertised"],
  "await Deliveries": ["Deliveries", "delivered"],
  "await SharingSet": ["SharingSet", "shared"],
  Complained: ["SharingSet", "complained"],
  "await Survivors": ["Survivors", "uploaded"],
  "await UnmaskRequest": ["UnmaskRequest", "asked"],
  "await Result": ["Result", "finished"],
  // In a sparse graph (sparse.mjs).
  "await AdvertDigests": ["AdvertDigests", "listed"],
  "await Neighbourhood": ["Neighbourhood", "introduced"],
  "await NeighbourDeliveries": ["NeighbourDeliveries", "delivered"],
  "await ProvenUnmaskRequest": ["ProvenUnmaskRequest", "proven"],
};
const CLOSED_SUM = "await ClosedSum"; // takes nothing: a closed sum comes outside the attempt
const RELEASED = ["await Result", CLOSED_SUM];
const UNMASKING = [MESSAGES.UnmaskRequest[0], MESSAGES.ProvenUnmaskRequest[0]];

/**
 * One site in one attempt.
 *
 * `work` is what it did before: {study, round, exchangeIndex, exchange, broadcastDigest, layout, lanes}, and what
 * its own copy of the study says: `asked` (ids), `contributors` ([{sites, least}]), `isPrivate`. `policy` has
 * minCohort, minThreshold, colluders, maxElements, demandsPrivacy. With `work.groupKey` the sum is closed. `journal` has begin, uploaded and unmasked. `tell`
 * writes the transcript: complains(spec, of), releases(spec, survivors), sums(spec, σ, result).
 */
export class MaskedSite {
  constructor({ identity, roster, work, policy = {}, journal, tell, draws = new Draws() }) {
    Object.assign(this, { identity, roster, work, journal, tell, draws });
    const colluders = Math.ceil(roster.ids.length / 3) - 1;
    this.policy = { minCohort: 3, minThreshold: 3, colluders, maxElements: Infinity, ...policy };
    this.name = identity.name;
    this.state = "await Specification";
    this.following = { advert: "await Adverts", sharing: "await Deliveries", view: "await UnmaskRequest" };
  }

  /** The reply to one message; any error closes the attempt. */
  handle(message) {
    const before = this.state;
    this.state = "Closed";
    try {
      const [reply, next] = this.#answer(before, message);
      this.state = next;
      return reply;
    } catch (error) {
      this.secrets = this.held = null;
      throw error;
    }
  }

  #answer(state, message) {
    let type;
    try {
      type = typeOf(message);
    } catch (error) {
      require(false, 1, error.message);
    }
    const [name, handler] = STATES[state] ?? [];
    require(!(RELEASED.includes(state) && UNMASKING.includes(type)), 34, "shares were given out");
    require(name !== undefined && type === MESSAGES[name][0], 2, `message ${type} in the state ${state}`);
    let fields;
    try {
      fields = decode(name, message);
    } catch (error) {
      require(!(error instanceof ProtocolError), 1, error.message);
      throw error;
    }
    return this[handler](fields, message);
  }

  sign(words, ...parts) {
    return this.identity.sign(words, ...parts);
  }

  verified(site, signature, words, ...parts) {
    return verifies(this.roster.keys.get(site), signature, words, ...parts);
  }

  position(site) {
    return this.roster.position(site);
  }

  /** R39: enough sites add more than zeros to every part of the sum, or none does. */
  checkContributors(sites, strangers = 0) {
    for (const { sites: part, least = 0 } of this.work.contributors ?? []) {
      const found = sites.filter((site) => part.includes(site)).length;
      const needed = Math.max(least, this.policy.colluders + 2) + strangers;
      require(found === 0 || found >= needed, 39, `${found} of ${needed}`);
    }
  }

  specified(spec) {
    const { policy, roster, work } = this;
    const [n, t, c] = [spec.cohort.length, spec.threshold, policy.colluders];
    const signed = verifies(roster.aggregator, spec.signature, "sign attempt specification", body("Specification", spec));
    require(signed, 3, "the specification is not signed by the pinned aggregator");
    require(equal(spec.roster_digest, roster.digest), 4, "another roster than the pinned one");
    require(spec.cohort.every((site) => roster.keys.has(site)), 5, "a member is not in the roster");
    require(ascending(spec.cohort), 6, "the cohort is out of order");
    require(spec.cohort.includes(this.name), 7, "the cohort does not contain this site");
    require(spec.cohort.every((site) => (work.asked ?? roster.ids).includes(site)), 38, "a site is not asked");
    require(n >= Math.max(3, policy.minCohort), 8, `${n} sites`);
    const same = spec.study === work.study && spec.round === work.round;
    const place = spec.exchange_index === work.exchangeIndex && spec.exchange === work.exchange;
    require(same && place, 10, "another study, round or exchange");
    this.checkContributors(spec.cohort);
    require(work.layout.elements <= policy.maxElements, 14, "the layout is too large");
    require(equal(spec.layout_digest, work.layout.digest), 13, "another layout");
    require(equal(spec.broadcast_digest, work.broadcastDigest), 15, "another broadcast");
    require(work.isPrivate || !policy.demandsPrivacy, 16, "no privacy");
    const own = t >= policy.minThreshold && t >= policy.minCohort;
    require(own && t >= 3 && t <= n && 2 * t > n + c && n >= c + 2, 9, `a threshold of ${t} for ${n} sites`);
    this.admit(spec);
    this.journal.begin(spec);
    this.spec = spec;
    this.sigma = digest("attempt specification digest", body("Specification", spec));
    const [maskSecret, selfSeed] = [this.draws.maskSecret(), this.draws.selfSeed()];
    this.secrets = {
      maskSecret, selfSeed, maskKey: SealKey.ofMaskSecret(maskSecret), sealKey: this.draws.sealKey(),
    };
    this.own = {
      site: this.name, mask_key: this.secrets.maskKey.publicKey, seal_key: this.secrets.sealKey.publicKey,
      commitment: digest("self-mask commitment", selfSeed),
    };
    this.own.signature = this.sign("sign advertised keys", this.sigma, body(Advert, this.own));
    return [encode("Advert", this.own), this.following.advert];
  }

  /** What a specification must be for this graph. */
  admit() {}

  /** R18 and R19: the advertised set of these lines. */
  advertisedSet(lines) {
    const sites = lines.map(({ site }) => site);
    require(sites.every((site) => this.spec.cohort.includes(site)), 18, "an advert from outside the cohort");
    require(ascending(sites), 19, "adverts are out of order");
    return sites;
  }

  checkSigned(adverts) {
    for (const advert of adverts) {
      const signed = this.verified(advert.site, advert.signature, "sign advertised keys", this.sigma, body(Advert, advert));
      require(signed, 17, `the advert of ${advert.site}`);
    }
  }

  checkFresh(adverts) {
    const owners = new Map();
    for (const { site, mask_key, seal_key, commitment } of adverts) {
      for (const value of [mask_key, seal_key, commitment].map(hex)) {
        require(!owners.has(value), 20, "twice", `by ${owners.get(value)} and by ${site}`);
        owners.set(value, site);
      }
    }
  }

  advertised({ adverts }, message) {
    const sites = this.advertisedSet(adverts);
    this.checkSigned(adverts);
    const own = adverts.find(({ site }) => site === this.name);
    require(own && equal(Advert.write(own), Advert.write(this.own)), 21, "the own advert is missing or altered");
    this.checkFresh(adverts);
    require(adverts.length >= this.spec.threshold, 22, `${adverts.length} adverts`);
    this.alpha = digest("advertised set digest", message);
    const others = sites.filter((site) => site !== this.name);
    this.peers = { advertised: sites, neighbours: others, holders: sites, dealers: others, threshold: this.spec.threshold };
    const { envelopes } = this.deal(adverts.filter(({ site }) => site !== this.name));
    return [encode("Sharing", { envelopes }), this.following.sharing];
  }

  /** An envelope for every holder, a seed for every other neighbour; a holder of itself keeps its share of b. */
  deal(adverts) {
    const { maskSecret, selfSeed } = this.secrets;
    const { threshold, holders } = this.peers;
    const chosen = ["mask secret", "self-mask seed"].map((which) => this.draws.coefficients(which, threshold));
    const shares = (site) =>
      [maskSecret, selfSeed].map((secret, at) => share(secret, chosen[at], this.position(site) + 1));
    this.held = new Map(holders.includes(this.name) ? [[this.name, { selfShare: shares(this.name)[1] }]] : []);
    const [envelopes, seeds] = [[], []];
    for (const { site, mask_key, seal_key } of adverts) {
      const names = [utf8(this.name), utf8(site)];
      const context = [this.sigma, this.alpha, ...names];
      const [maskShare, selfShare] = shares(site);
      const seed = this.outgoingSeed(site);
      const sealed = this.seal(site, "seed", mask_key, seed, "seal pair seed", ...context);
      const plain = { sender: this.name, recipient: site, sealed_seed: sealed };
      if (!holders.includes(site)) {
        const signature = this.sign("sign seed envelope", this.sigma, this.alpha, body(SeedEnvelope, plain));
        seeds.push({ ...plain, signature });
        continue;
      }
      const envelope = {
        ...plain,
        sealed_shares: this.seal(site, "shares", seal_key, concat(maskShare, selfShare), "seal shares", ...context),
        mask_secret_share_digest: digest("mask secret share digest", ...context, maskShare),
        self_mask_share_digest: digest("self-mask share digest", ...context, selfShare),
      };
      const signature = this.sign("sign envelope", this.sigma, this.alpha, body(Envelope, envelope));
      envelopes.push({ ...envelope, signature });
    }
    return { envelopes, seeds };
  }

  seal(...sealed) {
    try {
      return this.draws.seal(...sealed);
    } catch (error) {
      return require(false, 1, error.message); // an advertised key that cannot be sealed to
    }
  }

  outgoingSeed(site) {
    return derive(this.secrets.maskSecret, "derive outgoing pair seed", [this.sigma, utf8(this.name), utf8(site)]);
  }

  delivered({ envelopes, seeds = [] }) {
    const { neighbours, dealers, holders, threshold } = this.peers;
    const others = neighbours.filter((site) => !dealers.includes(site));
    const fits = (list, from) => {
      const senders = list.map(({ sender }) => sender);
      return ascending(senders) && senders.every((site) => from.includes(site));
    };
    const every = [...envelopes, ...seeds];
    const here = every.every(({ recipient }) => recipient === this.name);
    require(here && fits(envelopes, dealers) && fits(seeds, others), 24, "an envelope is misaddressed or repeated");
    for (const envelope of every) {
      const [words, type] = envelopes.includes(envelope) ? ["sign envelope", Envelope] : ["sign seed envelope", SeedEnvelope];
      const parts = [this.sigma, this.alpha, body(type, envelope)];
      require(this.verified(envelope.sender, envelope.signature, words, ...parts), 23, envelope.sender);
    }
    const senders = every.map(({ sender }) => sender);
    const holding = holders.filter((site) => site === this.name || senders.includes(site)).length;
    require(holding >= threshold, 26, `${holding} holders`);
    const bad = every.filter((envelope) => !this.opens(envelope)).map(({ sender }) => sender);
    const complaints = this.peers.advertised.filter((site) => bad.includes(site));
    const confirmation = { site: this.name, complaints };
    const signed = [this.sigma, this.alpha, body("Confirmation", confirmation)];
    confirmation.signature = this.sign("sign confirmation", ...signed);
    if (complaints.length > 0) {
      this.secrets = this.held = null;
      this.tell.complains(this.spec, complaints);
    }
    return [encode("Confirmation", confirmation), complaints.length > 0 ? "Complained" : "await SharingSet"];
  }

  /** Keeps what an envelope holds; false if it does not open, or holds other shares than it states. */
  opens(envelope) {
    const context = [this.sigma, this.alpha, utf8(envelope.sender), utf8(this.name)];
    let seed, shares;
    try {
      seed = this.secrets.maskKey.open(envelope.sealed_seed, "seal pair seed", ...context);
      if (envelope.sealed_shares === undefined) {
        this.held.set(envelope.sender, { seed });
        return true;
      }
      shares = this.secrets.sealKey.open(envelope.sealed_shares, "seal shares", ...context);
    } catch {
      return false;
    }
    const [maskShare, selfShare] = [shares.subarray(0, SHARE), shares.subarray(SHARE)];
    this.held.set(envelope.sender, { seed, maskShare, selfShare });
    return (
      equal(digest("mask secret share digest", ...context, maskShare), envelope.mask_secret_share_digest) &&
      equal(digest("self-mask share digest", ...context, selfShare), envelope.self_mask_share_digest)
    );
  }

  complained() {
    require(false, 25, "this site complained of an envelope");
  }

  shared({ sharing }) {
    const { advertised, neighbours, holders, threshold } = this.peers;
    const silent = neighbours.filter((site) => !this.held.has(site));
    const known = sharing.every((site) => advertised.includes(site) && !silent.includes(site));
    require(ascending(sharing) && known, 24, "a stranger in the sharing set");
    require(sharing.includes(this.name), 24, "this site is not in the sharing set");
    require(sharing.length >= this.spec.threshold, 26, `${sharing.length} sites`);
    const holding = holders.filter((site) => sharing.includes(site)).length;
    require(holding >= threshold, 26, `${holding} holders`);
    this.sharing = sharing;
    const { lanes, runs } = this.maskedLanes();
    const vector = packAll(lanes, runs);
    this.journal.uploaded(this.spec);
    const upload = {
      vector, sharing_digest: digest("sharing set digest", encodeNames(sharing)), vector_digest: vectorDigest(vector),
    };
    const signed = [this.sigma, this.alpha, upload.sharing_digest, upload.vector_digest];
    upload.signature = this.sign("sign upload", ...signed);
    this.secrets = null;
    for (const kept of this.held.values()) delete kept.seed;
    return [encode("Upload", upload), "await Survivors"];
  }

  maskedLanes() {
    const { layout, broadcastDigest, cipher, groupKey } = this.work;
    const context = [this.sigma, layout.digest, broadcastDigest];
    let [lanes, runs] = [this.work.lanes.map((run) => run.slice()), layout.runs];
    if (groupKey !== undefined) {
      const attempt = [this.sigma, this.alpha];
      ({ lanes, runs } = closingLanes(groupKey, attempt, this.name, lanes, runs, context, cipher));
    }
    mask(lanes, runs, this.secrets.selfSeed, "derive self mask stream", context, 1, cipher);
    for (const site of this.sharing.filter((one) => this.peers.neighbours.includes(one))) {
      const [out, back] = [this.outgoingSeed(site), this.held.get(site).seed];
      const lower = this.position(this.name) < this.position(site);
      const pair = lower ? concat(out, back) : concat(back, out);
      mask(lanes, runs, pair, "derive pair mask stream", context, lower ? 1 : -1, cipher);
    }
    return { lanes, runs };
  }

  /** How many of so many survivors may be in no sum with this site. */
  strangers() {
    return 0;
  }

  uploaded({ survivors }) {
    const subset = ascending(survivors) && survivors.every((site) => this.sharing.includes(site));
    require(subset, 27, "survivors are not an ordered subset of the sharing set");
    require(survivors.includes(this.name), 28, "this site is not among the survivors");
    const least = Math.max(this.spec.threshold, this.policy.minCohort);
    require(survivors.length >= least, 29, `${survivors.length} survivors`);
    this.checkContributors(survivors, this.strangers(survivors.length));
    this.survivors = survivors;
    this.view = [this.sigma, this.alpha, encodeNames(this.sharing), encodeNames(survivors)];
    const signature = this.sign("sign consistent view", ...this.view);
    return [encode("View", { site: this.name, signature }), this.following.view];
  }

  asked({ dropped, views }) {
    const signers = views.map(({ site }) => site);
    const known = ascending(signers) && signers.every((site) => this.survivors.includes(site));
    require(known, 31, "a signer is no survivor, or comes twice");
    for (const { site, signature } of views) {
      require(this.verified(site, signature, "sign consistent view", ...this.view), 30, `the view of ${site}`);
    }
    require(views.length >= this.spec.threshold, 32, `${views.length} views`);
    const missing = this.sharing.filter((site) => !this.survivors.includes(site));
    require(equal(encodeNames(dropped), encodeNames(missing)), 33, "dropped sites are not those without a vector");
    this.journal.unmasked(this.spec);
    this.tell.releases(this.spec, this.survivors);
    const dealt = this.sharing.filter((peer) => this.held.get(peer)?.selfShare !== undefined);
    const shares = dealt.map((peer) => {
      const { maskShare, selfShare } = this.held.get(peer);
      const survives = this.survivors.includes(peer);
      return { peer, kind: survives ? OF_SELF_MASK : OF_MASK_SECRET, share: survives ? selfShare : maskShare };
    });
    this.held = null;
    const signature = this.sign("sign unmask shares", this.sigma, body("Shares", { shares }));
    const next = this.work.groupKey === undefined ? "await Result" : CLOSED_SUM;
    return [encode("Shares", { shares, signature }), next];
  }

  finished(result) {
    const signed = verifies(this.roster.aggregator, result.signature, "sign result", body("Result", result));
    require(signed, 35, "the result is not signed by the pinned aggregator");
    const same = equal(encodeNames(result.survivors), encodeNames(this.survivors));
    require(equal(result.spec_digest, this.sigma) && same, 36, "another attempt, or other survivors");
    this.tell.sums(this.spec, this.sigma, result);
    return [new Uint8Array(0), "Finished"];
  }
}
