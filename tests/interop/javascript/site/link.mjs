// The link over gRPC: deploy/transport/messages.proto, and what docs/protocol.md says of it in section 7.
import { createHash } from "node:crypto";
import grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import { equal } from "./encoding.mjs";
import { malformed, outgoing } from "./errors.mjs";

const PART = 2 ** 20;
const LONGEST_MESSAGE = PART + 64;
const [FIRST_PAUSE_MS, LONGEST_PAUSE_MS] = [100, 5_000];
const CALL_MS = 120_000;
const sha256 = (data) => createHash("sha256").update(data).digest();
const pause = (ms) => new Promise((wake) => setTimeout(wake, ms));

export class Link {
  /** `tls` holds ca, key and certificate in PEM. */
  constructor(proto, address, tls, study, maxFrameBytes) {
    const { secfed } = grpc.loadPackageDefinition(loadSync(proto, { longs: Number, keepCase: true, oneofs: true }));
    this.client = new secfed.link.v1.Link(address, grpc.credentials.createSsl(tls.ca, tls.key, tls.certificate), {
      "grpc.max_receive_message_length": LONGEST_MESSAGE,
      "grpc.max_send_message_length": LONGEST_MESSAGE,
    });
    Object.assign(this, { study, maxFrameBytes });
  }

  #options = () => ({ deadline: Date.now() + CALL_MS });

  #unary(method, message) {
    return new Promise((resolve, reject) => {
      this.client[method](message, this.#options(), (error, reply) => (error ? reject(error) : resolve(reply)));
    });
  }

  hello() {
    return this.#unary("Hello", { study: this.study, software: "secfed protocol in JavaScript" });
  }

  /** The next request, {id, frame}; null when there is nothing to do. */
  async next() {
    const parts = [];
    for await (const part of this.client.Next({ study: this.study }, this.#options())) {
      if (parts.length * PART > this.maxFrameBytes + PART) throw malformed("a frame is too long");
      parts.push(part);
    }
    if (parts.length === 0) return null;
    const [{ header }, ...data] = parts;
    if (!header || header.study !== this.study) throw malformed("a request of another study");
    const frame = Buffer.concat(data.map((part) => part.data));
    if (frame.length !== (header.total_bytes ?? 0) || !equal(sha256(frame), header.sha256)) {
      throw malformed("a frame is not what its header says");
    }
    return { id: header.request_id, frame: new Uint8Array(frame) };
  }

  answer(id, reply) {
    return new Promise((resolve, reject) => {
      const call = this.client.Answer(this.#options(), (error, receipt) => (error ? reject(error) : resolve(receipt)));
      const header = { study: this.study, request_id: id, sha256: sha256(reply) };
      if (reply.length > 0) header.total_bytes = reply.length; // zero is left out
      call.write({ header });
      for (let at = 0; at < reply.length; at += PART) call.write({ data: reply.subarray(at, at + PART) });
      call.end();
    });
  }

  refuse(id, error) {
    const [kind, reason] = outgoing(error);
    return this.#unary("Refuse", { study: this.study, request_id: id, kind, reason });
  }

  /** Answers requests until the study is over. What fails on the way is tried again. */
  async serve(handle, log) {
    let failures = 0;
    const insist = async (call) => {
      for (;;) {
        try {
          const value = await call();
          failures = 0;
          return value;
        } catch (error) {
          log(`the link: ${error.message}`);
          await pause(Math.random() * Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** failures++));
        }
      }
    };
    for (;;) {
      const request = await insist(() => this.next());
      if (request === null) {
        if ((await insist(() => this.hello())).finished) return;
        continue;
      }
      let reply;
      try {
        reply = handle(request.frame);
      } catch (error) {
        log(`refused: ${error.stack}`);
        await insist(() => this.refuse(request.id, error));
        continue;
      }
      await insist(() => this.answer(request.id, reply));
    }
  }

  close() {
    this.client.close();
  }
}
