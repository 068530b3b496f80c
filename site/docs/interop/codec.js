// A codec of wire protocol v4 and its files in one file of JavaScript without dependencies, written from spec/ alone.
// `node codec.js` answers one JSON question a line, as `yeto-conform` asks them of a codec adapter; the functions can
// be taken over into other programs as well. Comments name the specification file that says so.
//
// Integers of 64 bits are BigInt, and decimal strings in JSON. Bytes are Buffers, and hexadecimal in JSON.
"use strict";

const crypto = require("node:crypto");

class Refused extends Error {
  constructor(error, rule) {
    super(`${error}: ${rule}`);
    this.error = error;
    this.rule = rule;
  }
}

function demand(holds, error, rule) {
  if (!holds) throw new Refused(error, rule);
}

// --- Numbers: yeto.yaml, types.yaml, limits.yaml, numerics.yaml ---------------------------------------------------

const MAGIC = 0xd170c0de;
const HEADER_BYTES = 13;
const CHUNK_HEAD_BYTES = 24;
const HASH_BYTES = 32;
const PROTOCOL_VERSION = 4;
const FINALIZATION_REVISION = 1;
const MAX_STREAMS = 256;
const MAX_ALLOC = 1n << 40n;
const FRAGMENT_HEAD_BYTES = 5;
const Q4_BLOCK = 256;
const Q4_BLOCK_BYTES = 132;
const Q4_THRESHOLDS = [0x3c3504f2, 0x3cb504f6, 0x3d3504f2, 0x3db504f5, 0x3e3504f3, 0x3eb504f4, 0x3f3504f3];
const FINGERPRINT_DOMAIN = "yeto-layout-v1\0";
const PRESETS = {
  wire: { slice: 4 << 20, partials: 64, ranges: 65536, hello: 16 << 20, error: 65536 },
  tiny: { slice: 64, partials: 4, ranges: 16, hello: 4096, error: 256 },
};
const DTYPE = { F32: 1, BF16: 2, Q4: 3 };
const MERGE_MODE = { AVG: 0, RDA: 1, ISO: 2 };
const ISO_BACKEND = { SCALAR: 0, TORCH_SVD: 1 };
const nameOf = (names, value) => Object.keys(names).find((name) => names[name] === value);

// Bytes of n values (BigInt) in INIT and BCAST, and in PUSH: `sizes` in types.yaml.
const bulkBytes = (dtype, n) => (dtype === "F32" ? 4n : 2n) * n;
const pushBytes = (dtype, n) => (dtype === "Q4" ? ((n + 255n) / 256n) * BigInt(Q4_BLOCK_BYTES) : bulkBytes(dtype, n));

// --- Reading and writing -------------------------------------------------------------------------------------------

const WIDTH = { u8: 1, u16: 2, u32: 4, u64: 8, digest: HASH_BYTES };

// Takes fields off the front of some bytes; what is missing is Truncated, under the rule that `rule` names.
class Reader {
  constructor(data, rule) {
    this.data = data;
    this.at = 0;
    this.rule = rule;
  }
  get left() {
    return this.data.length - this.at;
  }
  bytes(count) {
    demand(BigInt(count) <= BigInt(this.left), "Truncated", this.rule);
    this.at += Number(count);
    return this.data.subarray(this.at - Number(count), this.at);
  }
  take(type) {
    const data = this.bytes(WIDTH[type]);
    if (type === "digest") return data;
    return type === "u64" ? data.readBigUInt64LE() : data.readUIntLE(0, WIDTH[type]);
  }
  rest() {
    return this.bytes(this.left);
  }
}

function put(type, value) {
  if (type === "digest") return Buffer.from(value, "hex");
  const data = Buffer.alloc(WIDTH[type]);
  if (type === "u64") data.writeBigUInt64LE(BigInt(value));
  else data.writeUIntLE(value, 0, WIDTH[type]);
  return data;
}

// A value as JSON has it.
const plain = (value) =>
  typeof value === "bigint" ? String(value) : Buffer.isBuffer(value) ? value.toString("hex") : value;

// --- Layout: `structures` in types.yaml ----------------------------------------------------------------------------

function readLayout(reader, count) {
  const layout = [];
  for (let i = 0; i < count; i++) {
    const mode = reader.take("u8");
    demand(nameOf(MERGE_MODE, mode) !== undefined, "BadMergeMode", "hello.merge_mode.must");
    const tensors = reader.take("u32");
    demand(tensors >= 1, "BadTensorCount", "hello.num_tensors.must");
    demand(tensors <= Math.floor(reader.left / 8), "BadTensorCount", "hello.num_tensors.fits");
    const numels = [];
    for (let j = 0; j < tensors; j++) numels.push(reader.take("u64"));
    demand(numels.every((numel) => numel >= 1n), "BadNumel", "hello.numels.must");
    demand(total(numels) < 1n << 64n, "LayoutOverflow", "hello.numels.total");
    const fragment = { merge_mode: nameOf(MERGE_MODE, mode), numels };
    if (mode === MERGE_MODE.ISO) {
      const rule = reader.rule;
      reader.rule = "hello.numels.complete";
      const block = new Reader(reader.bytes(16 * tensors));
      reader.rule = rule;
      fragment.shapes = numels.map((numel) => {
        const shape = [block.take("u64"), block.take("u64")];
        demand(shape[0] * shape[1] === numel, "BadIsoShape", "hello.shapes.must");
        return shape;
      });
    }
    layout.push(fragment);
  }
  return layout;
}

function writeLayout(layout) {
  return Buffer.concat(
    layout.flatMap((fragment) => [
      put("u8", MERGE_MODE[fragment.merge_mode]),
      put("u32", fragment.numels.length),
      ...fragment.numels.map((numel) => put("u64", numel)),
      ...(fragment.shapes ?? []).flat().map((side) => put("u64", side)),
    ]),
  );
}

const total = (numbers) => numbers.reduce((sum, each) => sum + BigInt(each), 0n);
const largest = (numbers) => numbers.reduce((most, each) => (each > most ? each : most), 0n);

// What decoding may know of a session: sizes of its fragments, and the dtype.
function sessionOf(dtype, layout) {
  const numels = layout.map((fragment) => total(fragment.numels));
  return { dtype, numels, most: largest(numels) };
}

function fingerprint(fragments) {
  const parts = [Buffer.from(FINGERPRINT_DOMAIN), put("u32", fragments.length)];
  for (const fragment of fragments) {
    parts.push(put("u8", MERGE_MODE[fragment.merge_mode]), put("u32", fragment.tensors.length));
    for (const { name, shape } of fragment.tensors) {
      const bytes = Buffer.from(name, "utf8");
      const numel = shape.reduce((product, side) => product * BigInt(side), 1n);
      parts.push(put("u32", bytes.length), bytes, put("u64", numel), put("u32", shape.length));
      parts.push(...shape.map((side) => put("u64", side)));
    }
  }
  return crypto.createHash("sha256").update(Buffer.concat(parts)).digest();
}

// --- Frames: frames/*.yaml -----------------------------------------------------------------------------------------

// A field: name, type, and the condition on its value with the error class when it does not hold. `s` is the session,
// null when it is not known: what depends on it is not judged then.
const atLeastOne = (value) => value >= 1;
const FRAGMENT_ID = ["fragment_id", "u32", (id, s) => !s || id < s.numels.length, "BadFragment"];
const VERSION = ["protocol_version", "u16", (version) => version === PROTOCOL_VERSION, "VersionMismatch"];
const REVISION = ["revision", "u16", (revision) => revision === FINALIZATION_REVISION, "BadRevision"];
const GENERATION = ["connection_generation", "u64", (generation) => generation !== 0n, "BadGeneration"];
const ATTEMPT = ["round_attempt", "u32", atLeastOne, "BadCounter"];
// Fields that stand after something of variable length are read by `more`.
const FRAMES = {
  HELLO: {
    id: 1,
    to: "syncer",
    limit: (s, preset) => preset.hello,
    fields: [
      VERSION,
      ["learner_id", "u32"],
      GENERATION,
      ["dtype", "u8", (dtype) => nameOf(DTYPE, dtype) !== undefined, "BadDtype"],
      ["num_fragments", "u32", atLeastOne, "BadFragmentCount"],
    ],
    more: readHello,
  },
  INIT_PARAMS: {
    id: 2,
    to: "syncer",
    limit: (s) => 4n + bulkBytes(s.dtype, s.most),
    fields: [FRAGMENT_ID],
    bulk: { name: "tensor", bytes: (s, n) => bulkBytes(s.dtype, n), finite: (s) => (s.dtype === "F32" ? "F32" : "BF16") },
  },
  PULL_REQ: { id: 3, to: "learner", limit: () => 16, fields: [FRAGMENT_ID, ["global_step", "u64"], ATTEMPT] },
  PUSH_FRAGMENT: {
    id: 4,
    to: "syncer",
    limit: (s) => 48n + pushBytes(s.dtype, s.most),
    fields: [
      ["learner_id", "u32"],
      FRAGMENT_ID,
      ["global_step", "u64"],
      ATTEMPT,
      ["base_version", "u64"],
      ["local_step", "u64"],
      ["c_steps", "u32", atLeastOne, "BadCounter"],
      ["c_tokens", "u64"],
    ],
    bulk: { name: "delta", bytes: (s, n) => pushBytes(s.dtype, n), finite: (s) => s.dtype },
  },
  BCAST_FRAGMENT: {
    id: 5,
    to: "learner",
    limit: (s) => 12n + bulkBytes(s.dtype, s.most),
    fields: [FRAGMENT_ID, ["version", "u64"]],
    bulk: { name: "tensor", bytes: (s, n) => bulkBytes(s.dtype, n) },
  },
  HEARTBEAT: { id: 6, to: "syncer", limit: () => 12, fields: [["learner_id", "u32"], ["local_step", "u64"]] },
  SHUTDOWN: { id: 7, to: "learner", limit: () => 0, fields: [] },
  DATA_HELLO: {
    id: 8,
    to: "syncer",
    limit: () => 16,
    fields: [VERSION, ["learner_id", "u32"], GENERATION, ["stream_idx", "u16"]],
  },
  CHUNK: {
    id: 9,
    limit: (s, preset) => CHUNK_HEAD_BYTES + preset.slice,
    fields: [["msg_id", "u64"], ["total_len", "u64"], ["offset", "u64"]],
    more: readChunk,
  },
  ERROR: { id: 10, to: "learner", limit: (s, preset) => preset.error, fields: [], more: readText },
  FINAL_MANIFEST: {
    id: 11,
    to: "learner",
    limit: (s) => 14 + 8 * s.numels.length,
    fields: [
      REVISION,
      ["final_global_step", "u64"],
      ["num_fragments", "u32", (count, s) => !s || count === s.numels.length, "BadFragmentCount"],
    ],
    more: readVersions,
  },
  FINAL_ACK: { id: 12, to: "syncer", limit: () => 10, fields: [REVISION, ["final_global_step", "u64"]] },
  FINAL_FRAGMENT: {
    id: 13,
    to: "learner",
    limit: (s) => 12n + 4n * s.most,
    fields: [FRAGMENT_ID, ["version", "u64"]],
    bulk: { name: "tensor", bytes: (s, n) => 4n * n },
  },
  BUDGET_DONE: { id: 14, to: "syncer", limit: () => 8, fields: [["exact_local_steps", "u64"]] },
};
const TYPES = Object.fromEntries(Object.keys(FRAMES).map((name) => [FRAMES[name].id, name]));

// A payload. Fields are judged in wire order, each as soon as it is read.
function decode(name, payload, s, side, preset = PRESETS.wire) {
  const frame = FRAMES[name];
  const slug = name.toLowerCase();
  const reader = new Reader(payload, `${slug}.payload.complete`);
  const fields = {};
  for (const [field, type, holds, error] of frame.fields) {
    fields[field] = reader.take(type);
    if (holds) demand(holds(fields[field], s), error, `${slug}.${field}.must`);
  }
  if (frame.bulk) readBulk(frame.bulk, slug, reader, fields, s);
  if (frame.more) frame.more(reader, fields, s, side, preset);
  demand(reader.left === 0, "TrailingBytes", `${slug}.payload.end`);
  return fields;
}

function readHello(reader, fields) {
  const count = fields.num_fragments;
  demand(count <= Math.floor(reader.left / FRAGMENT_HEAD_BYTES), "BadFragmentCount", "hello.num_fragments.fits");
  fields.dtype = nameOf(DTYPE, fields.dtype);
  fields.layout = readLayout(reader, count);
  const most = sessionOf(fields.dtype, fields.layout).most;
  demand(4n * most + BigInt(HEADER_BYTES + 48) <= MAX_ALLOC, "LayoutOverflow", "hello.layout.alloc");
  fields.layout_fingerprint = reader.take("digest");
  fields.session_contract_hash = reader.take("digest");
  // The profile has no flag: the bytes that are left tell whether it is there.
  const known = reader.left === 2 || reader.left === HASH_BYTES + 2;
  demand(known, "BadProfileLength", "hello.syncer_profile_hash.length");
  fields.syncer_profile_hash = reader.left === 2 ? null : reader.take("digest");
  fields.num_streams = reader.take("u16");
  demand(fields.num_streams <= MAX_STREAMS, "BadStreamCount", "hello.num_streams.must");
}

function readVersions(reader, fields) {
  const block = new Reader(reader.bytes(8 * fields.num_fragments));
  fields.expected_versions = Array.from({ length: fields.num_fragments }, () => block.take("u64"));
}

function readText(reader, fields) {
  try {
    // Without ignoreBOM the decoder would drop a byte order mark.
    fields.text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(reader.rest());
  } catch {
    throw new Refused("BadText", "error.text.utf8");
  }
}

function readBulk(bulk, slug, reader, fields, s) {
  const data = (fields[bulk.name] = reader.rest());
  if (!s) return;
  const exact = bulk.bytes(s, s.numels[fields.fragment_id]);
  demand(BigInt(data.length) === exact, "BadLength", `${slug}.${bulk.name}.length`);
  if (bulk.finite) judgeValues(bulk.finite(s), data, `${slug}.${bulk.name}`);
}

// NaN and infinity have all bits of the exponent set; a scale of q4 may not have its sign bit set either.
function judgeValues(dtype, data, rule) {
  const finite32 = (at) => (data.readUInt32LE(at) & 0x7f800000) !== 0x7f800000;
  if (dtype === "Q4") {
    for (let at = 0; at < data.length; at += Q4_BLOCK_BYTES)
      demand(finite32(at) && !(data.readFloatLE(at) < 0), "BadScale", `${rule}.scale`);
  } else if (dtype === "F32") {
    for (let at = 0; at < data.length; at += 4) demand(finite32(at), "NonFinite", `${rule}.finite`);
  } else {
    for (let at = 0; at < data.length; at += 2)
      demand((data.readUInt16LE(at) & 0x7f80) !== 0x7f80, "NonFinite", `${rule}.finite`);
  }
}

function readChunk(reader, fields, s, side) {
  demand(fields.total_len >= BigInt(HEADER_BYTES), "BadInnerFrame", "chunk.total_len.must");
  if (s && side) demand(fields.total_len <= totalLimit(s, side), "ChunkTotalTooLarge", "chunk.total_len.limit");
  fields.data = reader.rest();
  demand(fields.data.length >= 1, "EmptyChunk", "chunk.data.some");
  const stop = fields.offset + BigInt(fields.data.length);
  demand(stop <= fields.total_len, "ChunkOutOfRange", "chunk.data.inside");
}

// `chunk-total` in limits.yaml.
function totalLimit(s, side) {
  const names = side === "syncer" ? ["INIT_PARAMS", "PUSH_FRAGMENT"] : ["BCAST_FRAGMENT", "FINAL_FRAGMENT"];
  return BigInt(HEADER_BYTES) + largest(names.map((name) => FRAMES[name].limit(s)));
}

// A whole frame from fields as JSON has them.
function encode(name, fields) {
  const frame = FRAMES[name];
  const parts = frame.fields.map(([field, type]) =>
    put(type, field === "dtype" ? DTYPE[fields.dtype] : fields[field]),
  );
  if (name === "HELLO") {
    parts.push(writeLayout(fields.layout));
    parts.push(put("digest", fields.layout_fingerprint), put("digest", fields.session_contract_hash));
    if (fields.syncer_profile_hash) parts.push(put("digest", fields.syncer_profile_hash));
    parts.push(put("u16", fields.num_streams));
  }
  if (name === "FINAL_MANIFEST") parts.push(...fields.expected_versions.map((version) => put("u64", version)));
  if (name === "ERROR") parts.push(Buffer.from(fields.text, "utf8"));
  if (name === "CHUNK") parts.push(Buffer.from(fields.data, "hex"));
  if (frame.bulk) parts.push(Buffer.from(fields[frame.bulk.name], "hex"));
  const payload = Buffer.concat(parts);
  return Buffer.concat([put("u32", MAGIC), put("u8", frame.id), put("u64", payload.length), payload]);
}

// --- Streams: the header's rules in yeto.yaml, CHUNKs in frames/09_chunk.yaml ----------------------------------------

// One connection group as its receiver sees it. `feed` takes bytes as they arrive on a socket.
class Receiver {
  constructor(side, session, preset) {
    Object.assign(this, { side, session, preset, admitted: session !== null });
    this.sockets = new Map();
    this.open = new Map();
    this.messages = [];
  }
  feed(number, data) {
    const socket = this.sockets.get(number) ?? { opened: this.admitted, held: Buffer.alloc(0) };
    this.sockets.set(number, socket);
    socket.held = Buffer.concat([socket.held, data]);
    // A header is judged when all of it is there, and before anything else is done for its frame. A data stream waits
    // for the HELLO of its group.
    while (socket.held.length >= HEADER_BYTES && !(socket.opened && this.session === null)) {
      const head = this.header(socket.held, socket.opened);
      if (socket.held.length < HEADER_BYTES + head.len) return;
      const payload = socket.held.subarray(HEADER_BYTES, HEADER_BYTES + head.len);
      socket.held = socket.held.subarray(HEADER_BYTES + head.len);
      socket.opened = true;
      this.take(head.name, payload);
    }
  }
  end() {
    for (const { held } of this.sockets.values()) demand(held.length === 0, "Truncated", "header.len.complete");
  }
  header(data, opened) {
    const reader = new Reader(data);
    demand(reader.take("u32") === MAGIC, "BadMagic", "header.magic.must");
    const name = TYPES[reader.take("u8")];
    demand(name !== undefined, "UnknownType", "header.type.known");
    const opens = name === "HELLO" || name === "DATA_HELLO";
    demand(opened || opens, "InvalidFirstFrame", "header.type.first");
    const taken = FRAMES[name].to === undefined || FRAMES[name].to === this.side;
    demand(taken && !(opened && opens), "UnexpectedType", "header.type.direction");
    const len = reader.take("u64");
    demand(len <= BigInt(FRAMES[name].limit(this.session, this.preset)), "FrameTooLarge", "header.len.limit");
    return { name, len: Number(len) };
  }
  take(name, payload) {
    const fields = decode(name, payload, this.session, this.side, this.preset);
    if (name === "CHUNK") return this.gather(fields);
    if (name === "HELLO") this.session = sessionOf(fields.dtype, fields.layout);
    this.messages.push({ frame: name, fields });
  }
  gather({ msg_id, total_len, offset, data }) {
    if (!this.open.has(msg_id)) this.open.set(msg_id, { total_len, ranges: [], pieces: [] });
    const message = this.open.get(msg_id);
    demand(this.open.size <= this.preset.partials, "TooManyPartials", "chunk.msg_id.partials");
    demand(total_len === message.total_len, "ChunkTotalChanged", "chunk.total_len.same");
    const start = Number(offset);
    const range = [start, start + data.length];
    const apart = message.ranges.every(([from, to]) => range[1] <= from || to <= range[0]);
    demand(apart, "ChunkOverlap", "chunk.data.overlap");
    // Ranges that touch are one.
    for (const each of message.ranges.filter(([from, to]) => to === range[0] || from === range[1]))
      [range[0], range[1]] = [Math.min(range[0], each[0]), Math.max(range[1], each[1])];
    message.ranges = message.ranges.filter(([from, to]) => to < range[0] || range[1] < from);
    message.ranges.push(range);
    message.pieces.push([start, data]);
    demand(message.ranges.length <= this.preset.ranges, "TooManyRanges", "chunk.data.ranges");
    if (BigInt(range[1] - range[0]) < total_len) return;
    this.open.delete(msg_id);
    this.inner(Buffer.concat(message.pieces.sort((a, b) => a[0] - b[0]).map((piece) => piece[1])));
  }
  inner(data) {
    const reader = new Reader(data);
    const [magic, name, len] = [reader.take("u32"), TYPES[reader.take("u8")], reader.take("u64")];
    const taken = name !== undefined && FRAMES[name].to === this.side && !/HELLO$/.test(name);
    const good = magic === MAGIC && len === BigInt(reader.left) && taken;
    demand(good, "BadInnerFrame", "chunk.data.inner");
    this.take(name, reader.rest());
  }
}

// --- Tensors: Dtype in types.yaml, the thresholds in numerics.yaml -----------------------------------------------------

function encodeQ4(values) {
  const count = values.length / 4;
  const data = Buffer.alloc(Math.ceil(count / Q4_BLOCK) * Q4_BLOCK_BYTES);
  const bits = Buffer.alloc(4);
  for (let first = 0, at = 0; first < count; first += Q4_BLOCK, at += Q4_BLOCK_BYTES) {
    const block = Array.from({ length: Math.min(Q4_BLOCK, count - first) }, (_, i) => values.readFloatLE(4 * (first + i)));
    const scale = block.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
    if (Number.isNaN(scale)) data.writeUInt32LE(0x7fc00000, at);
    else data.writeFloatLE(scale, at);
    block.forEach((x, i) => {
      // The quotient is rounded to f32, and its bits are compared as an integer.
      const share = Math.abs(x) / (scale > 0 ? scale : 1);
      bits.writeFloatLE(Number.isNaN(share) ? 0 : share);
      const level = Q4_THRESHOLDS.filter((threshold) => bits.readUInt32LE() >= threshold).length;
      const nibble = level + (x < 0 && level > 0 ? 8 : 0);
      data[at + 4 + (i >> 1)] |= i % 2 ? nibble << 4 : nibble;
    });
  }
  return data;
}

function decodeQ4(data, count) {
  const exact = Math.ceil(count / Q4_BLOCK) * Q4_BLOCK_BYTES;
  demand(data.length === exact, "BadLength", "push_fragment.delta.length");
  judgeValues("Q4", data, "push_fragment.delta");
  const values = Buffer.alloc(4 * count);
  for (let i = 0; i < count; i++) {
    const at = Math.floor(i / Q4_BLOCK) * Q4_BLOCK_BYTES;
    const byte = data[at + 4 + ((i % Q4_BLOCK) >> 1)];
    const nibble = i % 2 ? byte >> 4 : byte & 15;
    const level = nibble & 7;
    const size = level === 0 ? 0 : 2 ** (level - 7) * data.readFloatLE(at);
    values.writeFloatLE(nibble & 8 ? -size : size, 4 * i);
  }
  return values;
}

function encodeBf16(values) {
  const data = Buffer.alloc(values.length / 2);
  for (let i = 0; i < values.length / 4; i++) {
    const bits = values.readUInt32LE(4 * i);
    const nan = (bits & 0x7fffffff) > 0x7f800000;
    // To nearest, ties to even: half of the last place less one, plus the last bit that stays.
    const rounded = nan ? bits | 0x400000 : bits + 0x7fff + ((bits >>> 16) & 1);
    data.writeUInt16LE((rounded >>> 16) & 0xffff, 2 * i);
  }
  return data;
}

function decodeBf16(data, count) {
  demand(data.length === 2 * count, "BadLength", "bcast_fragment.tensor.length");
  const values = Buffer.alloc(4 * count);
  for (let i = 0; i < count; i++) values.writeUInt32LE(data.readUInt16LE(2 * i) * 65536, 4 * i);
  return values;
}

// --- Files: files/snapshot.yaml, final_marker.yaml, final_state.yaml ----------------------------------------------------

const SNAPSHOT_MAGIC = { v1: 0xd1705a7e, v2: 0xd1705a7f, v3: 0xd1705a80 };
const CONTRACT_TAG = 0x52544353;
const SWEEP_TAG = 0x50535750;
const TRAILERS = { 0: "none", 32: "fingerprint", 40: "sweep_without_contract", 68: "contract", 72: "sweep" };

function readSnapshot(data) {
  const reader = new Reader(data, "snapshot.complete");
  const version = nameOf(SNAPSHOT_MAGIC, reader.take("u32"));
  demand(version !== undefined, "BadFileMagic", "snapshot.magic.must");
  const fields = { version, iso_backend: null, fingerprint: null };
  if (version !== "v1") {
    fields.iso_backend = nameOf(ISO_BACKEND, reader.take("u8"));
    demand(fields.iso_backend !== undefined, "BackendUnknown", "snapshot.iso_backend.must");
  }
  if (version === "v3") fields.fingerprint = reader.take("digest");
  fields.global_step = reader.take("u64");
  const count = reader.take("u32");
  demand(count >= 1, "BadFragmentCount", "snapshot.fragment_count.must");
  demand(count <= reader.left / 24, "Truncated", "snapshot.complete");
  fields.fragments = Array.from({ length: count }, () => {
    const [step, numel] = [reader.take("u64"), reader.take("u64")];
    demand(numel >= 1n, "BadNumel", "snapshot.numel.must");
    return { version: step, numel, params: reader.bytes(4n * numel), momentum: reader.bytes(4n * numel) };
  });
  const entries = reader.take("u32");
  demand(entries <= reader.left / 28, "Truncated", "snapshot.complete");
  fields.ledger = Array.from({ length: entries }, () => ({
    learner_id: reader.take("u32"),
    merges: reader.take("u64"),
    steps: reader.take("u64"),
    tokens: reader.take("u64"),
  }));
  const ids = new Set(fields.ledger.map((entry) => entry.learner_id));
  demand(ids.size === entries, "DuplicateLedger", "snapshot.ledger.unique");
  return readTrailer(reader, fields);
}

function readTrailer(reader, fields) {
  const wrong = ["BadTrailer", "snapshot.trailer.must"];
  fields.trailer = TRAILERS[reader.left];
  fields.contract = null;
  demand(fields.trailer !== undefined, ...wrong);
  if (fields.trailer === "none") return fields;
  fields.again = reader.take("digest");
  demand(fields.fingerprint === null || fields.again.equals(fields.fingerprint), ...wrong);
  if (fields.trailer === "fingerprint") return fields;
  demand(reader.take("u32") === (fields.trailer === "contract" ? CONTRACT_TAG : SWEEP_TAG), ...wrong);
  if (fields.trailer !== "contract") demand(reader.take("u32") >= 1, ...wrong);
  if (reader.left) fields.contract = reader.take("digest");
  return fields;
}

// Whether a run may start from the file: the rules with `when: start`.
function judgeStart(fields, start) {
  demand(fields.version !== "v1", "BackendUnknown", "snapshot.magic.resume");
  demand(fields.iso_backend === start.iso_backend, "BackendMismatch", "snapshot.iso_backend.resume");
  demand(!fields.trailer.startsWith("sweep"), "BadTrailer", "snapshot.trailer.resume");
  const step = fields.global_step;
  const every = BigInt(fields.fragments.length);
  fields.fragments.forEach(({ version }, f) => {
    const first = BigInt(f) + 1n;
    const due = step < first ? 0n : first + ((step - first) / every) * every;
    demand(version === due, "NotContiguous", "snapshot.version.contiguous");
  });
}

// Whether it fits the session that a HELLO asks for: the rules with `when: hello`.
function judgeSession(fields, session) {
  const differs = (holds, rule) => demand(holds, "SnapshotMismatch", `snapshot.${rule}.session`);
  const digests = [fields.fingerprint, fields.again].filter(Boolean).map(plain);
  differs(digests.every((digest) => digest === session.fingerprint), "fingerprint");
  differs(fields.fragments.length === session.layout.length, "fragment_count");
  const fits = ({ numel }, f) => numel === total(session.layout[f].numels);
  differs(fields.fragments.every(fits), "numel");
  const single = session.layout.every((fragment) => fragment.numels.length === 1);
  if (fields.version === "v2") demand(single, "GroupedLegacySnapshot", "snapshot.layout.grouped");
  else differs(session.contract === plain(fields.contract ?? session.fingerprint), "contract");
}

function writeSnapshot(fields) {
  const parts = [put("u32", SNAPSHOT_MAGIC.v3), put("u8", ISO_BACKEND[fields.iso_backend])];
  parts.push(put("digest", fields.fingerprint), put("u64", fields.global_step), put("u32", fields.fragments.length));
  for (const { version, numel, params, momentum } of fields.fragments)
    parts.push(put("u64", version), put("u64", numel), Buffer.from(params + momentum, "hex"));
  parts.push(put("u32", fields.ledger.length));
  for (const { learner_id, merges, steps, tokens } of fields.ledger)
    parts.push(put("u32", learner_id), ...[merges, steps, tokens].map((each) => put("u64", each)));
  return Buffer.concat([...parts, put("digest", fields.fingerprint), put("u32", CONTRACT_TAG), put("digest", fields.contract)]);
}

function readMarker(data) {
  const match = /^YETO_FINAL_V1\nglobal_step=([0-9]+)\n$/.exec(data.toString("latin1"));
  demand(match !== null, "BadMarker", "final_marker.form");
  demand(BigInt(match[1]) < 1n << 64n, "BadMarker", "final_marker.global_step.must");
  return { global_step: BigInt(match[1]) };
}

function readFinalState(data) {
  const reader = new Reader(data, "final_state.complete");
  const count = reader.take("u32");
  demand(count >= 1, "BadFragmentCount", "final_state.fragment_count.must");
  demand(count <= reader.left / 8, "Truncated", "final_state.complete");
  const fragments = Array.from({ length: count }, () => {
    const numel = reader.take("u64");
    demand(numel >= 1n, "BadNumel", "final_state.numel.must");
    return { numel, params: reader.bytes(4n * numel) };
  });
  demand(reader.left === 0, "TrailingBytes", "final_state.end");
  return { fragments };
}

// --- One JSON object a line ---------------------------------------------------------------------------------------------

const hex = (text) => Buffer.from(text, "hex");
const given = (session) => session && sessionOf(session.dtype, session.layout);
const values = (question, write, read) =>
  question.values === undefined
    ? { values: read(hex(question.data), question.numel) }
    : { data: write(hex(question.values)) };

const ANSWERS = {
  decode: (q) => ({ fields: decode(q.frame, hex(q.payload), given(q.session), q.side) }),
  encode: (q) => ({ wire: encode(q.frame, q.fields) }),
  fingerprint: (q) => ({ fingerprint: fingerprint(q.fragments) }),
  q4: (q) => values(q, encodeQ4, decodeQ4),
  bf16: (q) => values(q, encodeBf16, decodeBf16),
  snapshot_encode: (q) => ({ file: writeSnapshot(q.fields) }),
  marker: (q) => ({ fields: readMarker(hex(q.file)) }),
  final_state: (q) => ({ fields: readFinalState(hex(q.file)) }),
  snapshot(q) {
    const fields = readSnapshot(hex(q.file));
    if (q.start) judgeStart(fields, q.start);
    if (q.session) judgeSession(fields, q.session);
    delete fields.again;
    return { fields };
  },
  stream(q) {
    const receiver = new Receiver(q.side, q.admitted === false ? null : given(q.session), PRESETS[q.preset ?? "wire"]);
    for (const [socket, data] of q.pieces) receiver.feed(socket, hex(data));
    if (q.end) receiver.end();
    return { messages: receiver.messages };
  },
};

function answer(line) {
  const question = JSON.parse(line);
  if (!Object.hasOwn(ANSWERS, question.op)) return { id: question.id, unsupported: true };
  try {
    return { id: question.id, ok: true, ...ANSWERS[question.op](question) };
  } catch (refused) {
    if (!(refused instanceof Refused)) throw refused;
    return { id: question.id, ok: false, error: refused.error, rule: refused.rule };
  }
}

// Buffers become hexadecimal and BigInts decimal text. (`this[key]`: a Buffer has turned itself into an object before
// the replacer sees its value.)
const json = (value) => JSON.stringify(value, function (key) { return plain(this[key]); });

module.exports = { Refused, Receiver, decode, encode, sessionOf, fingerprint, encodeQ4, decodeQ4, encodeBf16, decodeBf16 };
Object.assign(module.exports, { readSnapshot, writeSnapshot, readMarker, readFinalState, judgeStart, judgeSession });

if (require.main === module) {
  const lines = require("node:readline").createInterface({ input: process.stdin });
  lines.on("line", (line) => process.stdout.write(`${json(answer(line))}\n`));
}
