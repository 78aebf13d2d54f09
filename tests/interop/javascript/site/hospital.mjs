// The frames of section 7 of docs/protocol.md: tasks, steps and notices of one study.
import { renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { decode, equal, FRAMES, hex, readAll, typeOf, utf8 } from "./encoding.mjs";
import { malformed, ProtocolError, require } from "./errors.mjs";
import { openFinalModel } from "./final_model.mjs";
import { Layout } from "./layout.mjs";
import { MaskedSite } from "./masked.mjs";
import { digest, random } from "./primitives.mjs";
import { readTensors } from "./safetensors.mjs";
import { SparseSite } from "./sparse.mjs";

const READY = utf8("ready");
const [TASK, STEP, NOTICE] = [1, 2, 3];
const SPECIFICATION = 0;
const MODEL_FILE = "model.safetensors";

/**
 * One site of one study under masked protection. `program` is the local work: `exchanges(round)` with name and
 * fields of each, `shapes` of the broadcast, `bound` of its numbers, and `contribute(exchange, tensors)`; `cipher`
 * makes the masks, between all sites or in the sparse `graph` ({dropout_rate}).
 */
export class Hospital {
  constructor({ identity, roster, study, program, policy, journal, transcript, folder, cipher, graph }) {
    Object.assign(this, { identity, roster, study, program, policy, journal, transcript, folder, cipher, graph });
    this.work = this.session = null;
  }

  /** The reply to one frame. */
  handle(frame) {
    if (!(frame[0] in FRAMES)) throw malformed("no frame of this protocol");
    const fields = readAll(FRAMES[frame[0]], frame.subarray(1));
    return { [TASK]: this.task, [STEP]: this.step, [NOTICE]: this.notice }[frame[0]].call(this, fields);
  }

  task({ study, round, exchange_index, exchange, broadcast }) {
    const contradicts = (message) => new ProtocolError("InconsistentView", message);
    if (study !== this.study) throw contradicts("a task of another study");
    const planned = this.program.exchanges(round)[exchange_index];
    if (planned?.name !== exchange) throw contradicts("the study has no such exchange there");
    const broadcastDigest = digest("broadcast digest", broadcast);
    const last = this.work ?? { round: 0, exchangeIndex: 0 };
    const later = round - last.round || exchange_index - last.exchangeIndex;
    const left = this.journal.left(study, round, exchange_index); // also before a restart
    if (later === 0 && !left) {
      if (!equal(broadcastDigest, last.broadcastDigest)) throw contradicts("the exchange was begun from another broadcast");
      return READY; // an aggregator that was restarted asks again
    }
    if (later <= 0 || left) throw new ProtocolError("Replay", "this exchange was worked on already");
    const tensors = this.#checked(broadcast);
    const layout = new Layout(planned.fields, this.roster.ids.length);
    // What the work comes to changes nothing about the reply: the program adds zeros where it fails.
    const lanes = layout.quantise(this.program.contribute(planned, tensors), random(32));
    this.session = null;
    this.work = {
      study, round, exchange, exchangeIndex: exchange_index, layout, lanes, isPrivate: false, broadcastDigest,
      cipher: this.cipher, graph: this.graph,
    };
    return READY;
  }

  #checked(broadcast) {
    const { shapes, bound } = this.program;
    const tensors = readTensors(broadcast);
    const names = Object.keys(tensors).sort();
    const described = names.map((name) => `${name}:${tensors[name].shape}`).join("|");
    const finite = ({ values }) => values.every((value) => Math.abs(value) <= bound);
    require(Object.values(tensors).every(finite), 43, "in the broadcast");
    const expected = Object.keys(shapes).sort().map((name) => `${name}:${shapes[name]}`).join("|");
    require(described === expected, 44, "in the broadcast");
    return tensors;
  }

  step({ round, exchange_index, attempt, message }) {
    const { work, session } = this;
    if (work?.round !== round || work.exchangeIndex !== exchange_index) {
      throw new ProtocolError("InconsistentView", "a step of an exchange that was not worked on");
    }
    if (session !== null && attempt < session.number) throw new ProtocolError("Replay", "a step of an earlier attempt");
    if (session !== null && attempt === session.number) return session.site.handle(message);
    const opened = new (this.graph ? SparseSite : MaskedSite)({ ...this, tell: this });
    if (isSpecification(message)) {
      const signed = decode("Specification", message).attempt;
      require(signed === attempt, 10, "the frame names another attempt than the specification");
    }
    const reply = opened.handle(message); // only an accepted specification replaces what runs
    this.session = { number: attempt, site: opened };
    return reply;
  }

  notice({ message }) {
    const final = openFinalModel(message, this.roster, this.study);
    const sha256 = hex(final.model_digest);
    const known = this.transcript.bodies.find(({ kind }) => kind === "model")?.body;
    require(known === undefined || known.sha256 === sha256, 41, "another model is in the transcript");
    if (known === undefined) {
      const path = join(this.folder, MODEL_FILE);
      writeFileSync(`${path}.new`, final.model, { flush: true });
      renameSync(`${path}.new`, path);
      const { round, sums, signature } = final;
      this.transcript.append("model", {
        file: MODEL_FILE, sha256, bytes: final.model.length, round, sums, signature: hex(signature),
      });
    }
    return READY;
  }

  complains({ round, exchange, attempt }, of) {
    this.transcript.append("complained", { round, exchange, attempt, of });
  }

  releases({ round, exchange, attempt }, survivors) {
    this.transcript.append("released", { round, exchange, attempt, survivors });
  }

  sums({ round, exchange, attempt }, sigma, result) {
    const { layout } = this.work;
    this.transcript.append("summed", {
      round, exchange, attempt, spec_digest: hex(sigma), survivors: result.survivors,
      totals_digest: hex(result.totals_digest), result_signature: hex(result.signature),
      layout: hex(layout.digest), fields: layout.fields.map(({ name }) => name),
    });
  }
}

function isSpecification(message) {
  try {
    return typeOf(message) === SPECIFICATION && decode("Specification", message) !== null;
  } catch {
    return false; // the session says what is wrong with it
  }
}
