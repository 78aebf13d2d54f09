// The container of broadcasts and models: u64 little-endian size of a JSON header, the header, the data.
// Source: https://github.com/huggingface/safetensors, "Format".
import { malformed } from "./errors.mjs";

const READERS = { F32: [4, "getFloat32"], F64: [8, "getFloat64"] };
const MAX_HEADER = 1e8;

/** Names to {dtype, shape, values}, values as an array of numbers. */
export function readTensors(data) {
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  if (data.length < 8) throw malformed("no safetensors: too short");
  const size = Number(view.getBigUint64(0, true));
  if (size > Math.min(MAX_HEADER, data.length - 8)) throw malformed("no safetensors: the header is too long");
  let header;
  try {
    header = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(data.subarray(8, 8 + size)));
  } catch {
    throw malformed("no safetensors: the header is not JSON");
  }
  const tensors = {};
  let covered = 0;
  for (const [name, { dtype, shape, data_offsets: [start, end] }] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const count = shape.reduce((product, one) => product * one, 1);
    const [width, read] = READERS[dtype] ?? [0];
    const at = 8 + size + start;
    if (width === 0 || end - start !== width * count || at + width * count > data.length) {
      throw malformed(`no safetensors: ${name}`);
    }
    covered += end - start;
    tensors[name] = { dtype, shape, values: Array.from({ length: count }, (_, k) => view[read](at + width * k, true)) };
  }
  if (covered !== data.length - 8 - size) throw malformed("no safetensors: other data than the header says");
  return tensors;
}
