"""A learner of wire protocol v4 in one file, written from spec/ alone: `python learner.py CASE.json`.

The case (spec/files/client_case.yaml) tells what to train. Exit code 0 after SHUTDOWN; 1 when the syncer
refuses this learner or breaks a rule. A thread reads each socket, so no step keeps the syncer waiting.
"""

import contextlib
import hashlib
import json
import queue
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np

MAGIC, VERSION, REVISION, F32, BF16, Q4 = 0xD170C0DE, 4, 1, 1, 2, 3
HELLO, INIT, PULL, PUSH, BCAST, HEARTBEAT, SHUTDOWN, DATA_HELLO, CHUNK, ERROR = range(1, 11)
MANIFEST, ACK, FINAL = 11, 12, 13
SLICE, MAX_PARTIAL, MAX_RANGES, ERROR_MAX = 4 << 20, 64, 65536, 65536
THRESHOLDS = [0x3C3504F2, 0x3CB504F6, 0x3D3504F2, 0x3DB504F5, 0x3E3504F3, 0x3EB504F4, 0x3F3504F3]
MODES, DTYPES = {"avg": 0, "rda": 1, "iso": 2}, {"f32": F32, "bf16": BF16, "q4": Q4}


def demand(holds, what):  # otherwise the syncer refused this learner or broke a rule: exit code 1, no redial
    if not holds:
        raise SystemExit(f"error: {what}")


def encode(dtype, values):  # types.yaml, Dtype
    values = values.astype("<f4")
    if dtype == F32:
        return values.tobytes()
    if dtype == BF16:
        bits = values.view("<u4")
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
    blocks = np.pad(values, (0, -values.size % 256)).reshape(-1, 256)
    scale = np.abs(blocks).max(axis=1, keepdims=True)
    shares = np.abs(blocks) / np.where(scale == 0, np.float32(1), scale)
    level = np.searchsorted(np.array(THRESHOLDS, "u4"), shares.view("u4"), side="right").astype("u1")
    nibbles = level + np.where((blocks < 0) & (level > 0), 8, 0).astype("u1")
    return np.concatenate([scale.view("u1"), nibbles[:, ::2] | nibbles[:, 1::2] << 4], axis=1).tobytes()


def decode(dtype, data):  # of a broadcast: f32, or bf16 also in a q4 session
    values = np.frombuffer(data, "<f4" if dtype == F32 else "<u2")
    return values if dtype == F32 else (values.astype("<u4") << 16).view("<f4")


def ramp(seed, scale, numel):  # client_case.yaml, recipe
    steps = (np.arange(numel, dtype=np.int64) * 7 + int(seed)) % 256 - 128
    return steps.astype("<f4") / np.float32(128) * np.float32(scale)


class Case:  # the case file: fragments with their initial values, and what each local step adds
    def __init__(self, path):
        given = json.loads(Path(path).read_text())
        host, _, port = given["address"].rpartition(":")
        self.address, self.pause, self.recipe = (host, int(port)), given["step_ms"] / 1000, given["update"]
        self.learner_id, self.streams = given["learner_id"], given["num_streams"]
        self.contract, self.alpha = bytes.fromhex(given["session_contract"]), np.float32(given["merge_alpha"])
        self.steps, self.tokens, self.dtype = given["steps"], given["tokens_per_step"], DTYPES[given["dtype"]]
        self.fragments = [(MODES[each["merge_mode"]], each["tensors"]) for each in given["fragments"]]
        self.sizes = [[int(np.prod(each["shape"])) for each in tensors] for _, tensors in self.fragments]
        self.numels, self.unit = [sum(each) for each in self.sizes], 4 if self.dtype == F32 else 2

    def initial(self, fragment):
        recipes = [(each["initial"], each["shape"]) for each in self.fragments[fragment][1]]
        return np.concatenate([ramp(each["seed"], each["scale"], np.prod(shape)) for each, shape in recipes])

    def update(self, fragment, step):
        first = int(self.recipe["seed"]) + 1000 * step + sum(map(len, self.sizes[:fragment]))
        sizes = enumerate(self.sizes[fragment], first)
        return np.concatenate([ramp(seed, self.recipe["scale"], numel) for seed, numel in sizes])

    def hello(self, generation):  # frames/01_hello.yaml; types.yaml, layout; yeto.yaml, FINGERPRINT_DOMAIN
        layout, names = b"", b"yeto-layout-v1\0" + struct.pack("<I", len(self.sizes))
        for (mode, tensors), sizes in zip(self.fragments, self.sizes, strict=True):
            layout += struct.pack(f"<BI{len(sizes)}Q", mode, len(sizes), *sizes)
            names += struct.pack("<BI", mode, len(sizes))
            for tensor, numel in zip(tensors, sizes, strict=True):
                name, shape = tensor["name"].encode(), tensor["shape"]
                names += struct.pack("<I", len(name)) + name
                names += struct.pack(f"<QI{len(shape)}Q", numel, len(shape), *shape)
                layout += struct.pack("<QQ", *shape) if mode == MODES["iso"] else b""
        head = struct.pack("<HIQBI", VERSION, self.learner_id, generation, self.dtype, len(self.sizes))
        digests = hashlib.sha256(names).digest() + self.contract
        return head + layout + digests + struct.pack("<H", self.streams)


def frame(kind, payload):
    return struct.pack("<IBQ", MAGIC, kind, len(payload)) + payload


class Link:  # one connection group: sockets, a thread for each that reads, and the messages that have come
    def __init__(self, case):
        self.inbox, self.partial, self.lock = queue.Queue(), {}, threading.Lock()
        self.streams, self.turn, self.numbers, self.sockets = case.streams, 0, 0, []
        most, count, generation = max(case.numels), len(case.numels), time.time_ns()
        self.limits = {PULL: 16, SHUTDOWN: 0, ERROR: ERROR_MAX, MANIFEST: 14 + 8 * count, CHUNK: 24 + SLICE}
        self.limits |= {BCAST: 12 + case.unit * most, FINAL: 12 + 4 * most}
        self.total_limit = 13 + max(self.limits[BCAST], self.limits[FINAL])
        heads = [(VERSION, case.learner_id, generation, index) for index in range(case.streams)]
        streams = [frame(DATA_HELLO, struct.pack("<HIQH", *head)) for head in heads]
        self.hellos = [frame(HELLO, case.hello(generation)), *streams]

    def dial(self, address):
        for hello in self.hellos:
            self.sockets.append(socket.create_connection(address))
            self.put(-1, hello)
            threading.Thread(target=self.read, args=(self.sockets[-1],), daemon=True).start()

    def put(self, index, data):
        with contextlib.suppress(
            OSError
        ):  # the thread that reads tells of the end, behind what has come before
            self.sockets[index].sendall(data)

    def send(self, kind, payload, bulk=False):
        data = frame(kind, payload)
        if not bulk or not self.streams:
            self.put(0, data)
            return
        for offset in range(0, len(data), SLICE):
            chunk = struct.pack("<QQQ", self.numbers, len(data), offset) + data[offset : offset + SLICE]
            self.put(1 + self.turn % self.streams, frame(CHUNK, chunk))
            self.turn += 1
        self.numbers += 1

    def read(self, each):
        try:
            while True:
                magic, kind, length = struct.unpack("<IBQ", self.exactly(each, 13))
                demand(magic == MAGIC, "bad magic")
                demand(length <= self.limits.get(kind, -1), f"a frame of type {kind} and {length} bytes")
                payload = self.exactly(each, length)
                kind, payload = self.gather(payload) if kind == CHUNK else (kind, payload)
                if kind is not None:
                    exact = len(payload) == self.limits[kind] or kind == ERROR
                    demand(len(payload) > 12 if kind in (BCAST, FINAL) else exact, "a wrong length")
                    self.inbox.put((kind, payload))
        except (SystemExit, OSError) as end:
            self.inbox.put((None, end))

    def exactly(self, each, length):
        data = each.recv(length, socket.MSG_WAITALL)
        if len(data) < length:
            raise ConnectionError("the connection ended")
        return data

    def gather(self, payload):  # frames/09_chunk.yaml
        demand(len(payload) > 24, "a chunk without bytes")
        (number, total, start), data = struct.unpack_from("<QQQ", payload), payload[24:]
        end = start + len(data)
        demand(13 <= total <= self.total_limit and end <= total, "a chunk that does not fit")
        with self.lock:
            length, pieces = self.partial.setdefault(number, (total, {}))
            demand(len(self.partial) <= MAX_PARTIAL, "too many incomplete messages")
            demand(length == total, "another total length for a message")
            demand(all(end <= at or at + len(b) <= start for at, b in pieces.items()), "overlapping chunks")
            pieces[start] = data
            ends = {at + len(each) for at, each in pieces.items()}
            demand(len(ends - set(pieces)) <= MAX_RANGES, "too many ranges")  # those that touch are one
            if sum(map(len, pieces.values())) < total:
                return None, b""
            del self.partial[number]
        whole = b"".join(pieces[at] for at in sorted(pieces))
        magic, kind, length = struct.unpack_from("<IBQ", whole)
        good = magic == MAGIC and length == len(whole) - 13 and kind in self.limits and kind != CHUNK
        demand(good, "a message that is no frame")
        return kind, whole[13:]


class Learner:  # anchors are accepted broadcasts, installed at local step `since`, `spent` for an outer step
    def __init__(self, case):
        self.case, self.step, self.beat = case, 0, 0.0
        self.local = [case.initial(number) for number in range(len(case.numels))]
        self.anchors, self.final, self.manifest, self.acked, self.over = {}, {}, None, None, False

    def run(self):
        for wait in (1, 2, 4, 8, 16, 30, 30, 30):  # behaviour/learner.yaml, learner.redial.waits
            link = Link(self.case)
            try:
                link.dial(self.case.address)
                return self.serve(link)
            except OSError as error:
                print(f"lost the syncer: {error}", file=sys.stderr)
            finally:
                for each in link.sockets:
                    each.close()
            time.sleep(wait)
        raise SystemExit("error: the syncer cannot be reached")

    def serve(self, link):
        self.pulls, self.caught_up, self.cut = {}, set(), False  # of this link
        for anchor in self.anchors.values():
            anchor.spent = anchor.spent and -1  # pushed, but a push on a replaced link frees its anchor
        for number in range(len(self.local) if self.case.learner_id == 0 else 0):
            if number not in self.anchors:
                data = encode(F32 if self.case.dtype == F32 else BF16, self.local[number])
                link.send(INIT, struct.pack("<I", number) + data, bulk=True)
        while not self.over:
            training = len(self.anchors) == len(self.local) and self.acked is None
            if training:
                for number, values in enumerate(self.local):
                    values += self.case.update(number, self.step)
                self.step += 1
                time.sleep(self.case.pause)
            self.take(link, wait=not training)
            self.answer(link)
            self.finish(link)

    def take(self, link, wait):  # all that has arrived; with `wait` at least one message, or a second
        with contextlib.suppress(queue.Empty):
            while not self.over:
                kind, payload = link.inbox.get(wait, 1)
                if kind is None:
                    raise payload
                self.message(kind, payload)
                wait = False

    def message(self, kind, payload):
        if kind == ERROR:
            raise SystemExit(f"error: the syncer says: {payload.decode(errors='replace')}")
        if kind == SHUTDOWN:
            demand(self.acked is not None, "SHUTDOWN before the FINAL_ACK")
            self.over = True
        elif kind == PULL:
            number, step, attempt = struct.unpack("<IQI", payload)
            demand(number < len(self.local) and attempt >= 1, "a PULL_REQ out of range")
            self.pulls[number] = step, attempt
        elif kind == MANIFEST:
            revision, _, count, *_ = struct.unpack(f"<HQI{len(self.local)}Q", payload)
            demand(revision == REVISION and count == len(self.local), "a FINAL_MANIFEST that does not fit")
            demand(self.manifest in (None, payload), "conflicting FINAL_MANIFEST")
            self.manifest, self.cut = payload, True
        else:
            self.tensor(kind, *struct.unpack_from("<IQ", payload), payload[12:])

    def tensor(self, kind, number, version, data):
        demand(number < len(self.local), "a fragment that the session does not have")
        unit, memory = (4, self.final) if kind == FINAL else (self.case.unit, self.anchors)
        demand(len(data) == unit * self.case.numels[number], "a tensor of another length")
        held = memory.get(number)
        demand(held is None or version != held.version or data == held.data, "other bytes for a version")
        if held is None or version > held.version:
            memory[number] = new = SimpleNamespace(version=version, data=data, since=self.step, spent=None)
            new.values = decode(F32 if kind == FINAL else self.case.dtype, data)
            if kind == BCAST:
                self.install(self.local[number], held, new, number not in self.caught_up)
        if kind == BCAST:
            self.caught_up.add(number)

    def install(self, local, held, new, catch_up):
        if held is not None and catch_up and held.spent is None:
            local += new.values - held.values  # learner.install.live: keeps progress that was not pushed
            new.since = held.since
        else:
            alpha = np.float32(0 if held is None else self.case.alpha)
            local[:] = alpha * local + (1 - alpha) * new.values

    def answer(self, link):
        for number, (step, attempt) in list(self.pulls.items()):
            anchor = self.anchors.get(number)
            able = number in self.caught_up and self.step > anchor.since and self.manifest is None
            if not able or anchor.spent not in (None, -1, step):
                continue  # kept until there is an anchor, and a delta that was pushed for no other step
            del self.pulls[number]
            anchor.spent, steps = step, self.step - anchor.since
            counters = (anchor.version, self.step, steps, steps * self.case.tokens)
            head = struct.pack("<IIQIQQIQ", self.case.learner_id, number, step, attempt, *counters)
            link.send(PUSH, head + encode(self.case.dtype, self.local[number] - anchor.values), bulk=True)
        if time.monotonic() - self.beat > 5:
            self.beat = time.monotonic()
            link.send(HEARTBEAT, struct.pack("<IQ", self.case.learner_id, self.step))

    def finish(
        self, link
    ):  # installs the exact cut when it is there; acknowledged on each link that brings it
        if not self.cut or self.step < self.case.steps or self.acked is link:
            return
        _, step, count, *versions = struct.unpack(f"<HQI{len(self.local)}Q", self.manifest)
        held = [self.final.get(number) for number in range(count)]
        if [each and each.version for each in held] == versions:
            for local, each in zip(self.local, held, strict=True):
                local[:] = each.values
            self.acked = link
            link.send(ACK, struct.pack("<HQ", REVISION, step))


if __name__ == "__main__":
    learner = Learner(Case(sys.argv[1]))
    learner.run()
    digest = hashlib.sha256(np.concatenate(learner.local).astype("<f4").tobytes()).hexdigest()
    print(f"finished after {learner.step} steps; SHA-256 of the final parameters {digest}")
