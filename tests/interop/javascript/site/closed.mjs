// Sections 12.5, 12.6 and 13 of docs/protocol.md: a site that opens the sums of its study itself.
import {
  ascending, body, decode, encode, encodeNames, equal, ExpectedState, hex, MESSAGES, readAll, typeOf, utf8,
} from "./encoding.mjs";
import { openLanes } from "./closing.mjs";
import { ProtocolError, require } from "./errors.mjs";
import { openFinalModel } from "./final_model.mjs";
import { Hospital } from "./hospital.mjs";
import { Layout } from "./layout.mjs";
import { derive, digest, random, verifies } from "./primitives.mjs";
import { StudyKey } from "./study_key.mjs";

const READY = utf8("ready");
const LEAST = 3;
const [UPLOAD, FINAL_MODEL] = [MESSAGES.Upload[0], MESSAGES.FinalModel[0]];
const contradicts = (message) => new ProtocolError("InconsistentView", message);
const later = ([round, index], [otherRound, otherIndex]) => round - otherRound || index - otherIndex;

/**
 * As Hospital, with the state of the study: `program.state()` gives its bytes, `program.absorb(exchange, totals)` adds a
 * sum, `program.contributors` is as in MaskedSite. `sites` are those of the study, `holder` makes the group key.
 */
export class ClosedHospital extends Hospital {
  constructor({ sites, holder, draws, keyDraws, ...own }) {
    super(own);
    Object.assign(this, { sites, draws });
    this.keys = new StudyKey({ ...own, sites, holder, draws: keyDraws });
    const colluders = Math.ceil(own.roster.ids.length / 3) - 1;
    this.policy = { minCohort: LEAST, minThreshold: LEAST, colluders, ...own.policy };
    Object.assign(this, { sums: 0, last: [0, 0], left: null, stopped: false });
  }

  handle(frame) {
    if (this.stopped) throw new ProtocolError("WrongState", "this site has stopped the study");
    return super.handle(frame);
  }

  stateTag() {
    return derive(this.keys.required, "derive state tag", [digest("broadcast digest", this.program.state())]);
  }

  view() {
    const view = { site: this.identity.name, sums: this.sums, state_digest: this.stateTag() };
    view.signature = this.identity.sign("sign state digest", utf8(this.study), body("StateView", view));
    return encode("StateView", view);
  }

  task({ study, round, exchange_index, exchange, broadcast }) {
    const expected = readAll(ExpectedState, broadcast);
    const tag = this.stateTag();
    if (this.sums !== expected.sums) return this.view();
    const unknown = expected.digest.every((byte) => byte === 0);
    if (!unknown && !equal(expected.digest, tag)) throw contradicts("another state than the other sites have");
    const here = [round, exchange_index];
    if (later(here, this.last) <= 0) throw new ProtocolError("Replay", "the sum of this exchange was taken");
    if (study !== this.study) throw contradicts("a task of another study");
    const worked = this.work === null ? [0, 0] : [this.work.round, this.work.exchangeIndex];
    if (later(here, worked) < 0 || this.journal.left(study, round, exchange_index)) {
      throw new ProtocolError("Replay", "this exchange was worked on already");
    }
    if (later(here, worked) > 0) this.#work(here, exchange, tag);
    return this.view();
  }

  #work(here, name, tag) {
    const planned = this.#planned(here);
    if (planned.name !== name) throw contradicts("the study has no such exchange there");
    const layout = this.#layout(planned);
    this.session = null;
    this.work = {
      study: this.study, round: here[0], exchangeIndex: here[1], exchange: name, layout, isPrivate: false,
      lanes: layout.quantise(this.program.contribute(planned), random(32)), broadcastDigest: tag, asked: this.sites,
      contributors: this.program.contributors, cipher: this.cipher, graph: this.graph, groupKey: this.keys.required,
    };
  }

  #planned([round, index]) {
    const planned = this.program.exchanges(round)[index];
    if (planned === undefined) throw contradicts("the study has no such exchange");
    return planned;
  }

  #layout({ fields }) {
    return new Layout(fields, this.roster.ids.length);
  }

  step(fields) {
    const reply = super.step(fields);
    if (reply.length > 0 && typeOf(reply) === UPLOAD) {
      this.left = { here: [fields.round, fields.exchange_index], sigma: this.session.site.sigma };
    }
    return reply;
  }

  notice({ message }) {
    const type = typeOf(message);
    if (type === MESSAGES.KeyRequest[0]) {
      const request = decode("KeyRequest", message);
      return request.hellos.length > 0 ? this.keys.pack(request) : this.keys.hello();
    }
    if (type === MESSAGES.KeyDelivery[0]) {
      this.keys.unpack(decode("KeyDelivery", message));
      return READY;
    }
    if (type === FINAL_MODEL) {
      openFinalModel(message, this.roster, this.study);
      require(false, 41, "this site computes the model itself");
    }
    if (type !== MESSAGES.ClosedSum[0]) throw new ProtocolError("WrongState", "nothing that this study sends");
    const summed = decode("ClosedSum", message);
    this.#take({ ...summed, spec: decode("Specification", summed.spec), result: decode("Result", summed.result) });
    return this.view();
  }

  #contributors(sites) {
    for (const { sites: part, least = 0 } of this.program.contributors ?? []) {
      const found = sites.filter((site) => part.includes(site)).length;
      require(found === 0 || found >= Math.max(least, this.policy.colluders + 2), 39, `${found} sites`);
    }
  }

  /** Section 12.5, in its order. */
  #take({ spec, result, adverts_digest: alpha, vector }) {
    const { aggregator } = this.roster;
    const signed = (one, words, name) => verifies(aggregator, one.signature, words, body(name, one));
    require(signed(spec, "sign attempt specification", "Specification"), 3, "the specification");
    require(signed(result, "sign result", "Result"), 35, "the result");
    require(equal(spec.roster_digest, this.roster.digest), 4, "another roster");
    require(spec.study === this.study, 10, "another study");
    const here = [spec.round, spec.exchange_index];
    const passed = this.left !== null && later(here, this.left.here) < 0;
    if (later(here, this.last) <= 0 || passed) throw contradicts("not after what this site took or worked on");
    const planned = this.#planned(here);
    const layout = this.#layout(planned);
    require(spec.exchange === planned.name, 10, "another exchange");
    require(equal(spec.layout_digest, layout.digest), 13, "another layout");
    const { cohort } = spec;
    require(cohort.every((site) => this.roster.keys.has(site)), 5, "a member is not in the roster");
    require(ascending(cohort), 6, "the cohort is out of order");
    require(cohort.every((site) => this.sites.includes(site)), 38, "a site is not asked");
    require(cohort.length >= Math.max(LEAST, this.policy.minCohort), 8, `${cohort.length} sites`);
    this.#contributors(cohort);
    this.#checkResult(spec, result, alpha, vector, here);
    const { survivors } = result;
    const { minCohort, minThreshold } = this.policy;
    const least = Math.max(LEAST, spec.threshold, minCohort, minThreshold);
    require(survivors.length >= least, 29, `${survivors.length} survivors`);
    this.#contributors(survivors);
    try {
      const sigma = digest("attempt specification digest", body("Specification", spec));
      const context = [sigma, layout.digest, spec.broadcast_digest];
      const opened = openLanes(this.keys.required, [sigma, alpha], survivors, vector, layout.runs, context, this.cipher);
      this.program.absorb(planned, layout.totals(opened, survivors.length));
    } catch (error) {
      this.stopped = true;
      throw error;
    }
    this.sums += 1;
    this.last = here;
    this.transcript.append(survivors.includes(this.identity.name) ? "summed" : "followed", {
      round: spec.round, exchange: spec.exchange, attempt: spec.attempt, spec_digest: hex(result.spec_digest),
      survivors, totals_digest: hex(result.totals_digest), result_signature: hex(result.signature),
      layout: hex(layout.digest), fields: layout.fields.map(({ name }) => name),
    });
  }

  /** R36. */
  #checkResult(spec, result, alpha, vector, here) {
    const { survivors } = result;
    const sigma = digest("attempt specification digest", body("Specification", spec));
    const uploaded = this.left !== null && later(this.left.here, here) === 0;
    const own = uploaded ? equal(this.left.sigma, sigma) : !survivors.includes(this.identity.name);
    require(own, 36, "not the specification of this site's upload, or it knows of none");
    const said = digest("totals digest", spec.layout_digest, alpha, vector);
    require(equal(result.spec_digest, sigma) && equal(result.totals_digest, said), 36, "not what was signed");
    require(ascending(survivors) && survivors.every((site) => spec.cohort.includes(site)), 36, "survivors");
    const site = this.session?.site;
    const view = site?.sigma && equal(site.sigma, sigma) && site.state !== "Closed" ? site.survivors : undefined;
    require(view === undefined || equal(encodeNames(view), encodeNames(survivors)), 36, "others than were signed");
    require(equal(spec.broadcast_digest, this.stateTag()), 36, "of another state");
  }
}
