"""Over which sockets of a group the values go."""

from __future__ import annotations

import numpy as np
import pytest

from tests.e2e.processes import Processes
from tests.e2e.raw import CONTROL, EndedError, Trainer, drive, hello
from tests.e2e.test_syncer_faults import ALONE
from yeto_proto._generated.messages import PullReq
from yeto_proto.layout import build_layout

LAYOUT = build_layout({"a": 1_500_000, "b": 1_500_000}, 2)
"""Two fragments of 6 MB, each of which makes two chunks."""

JOINS = 5
"""A machine so busy that data streams come seconds after their HELLO may spoil some of them."""


class Counting(Trainer):
    """Knows how many bytes each of its sockets has received; it only reads."""

    def __init__(self, port: int, generation: int, streams: int) -> None:
        self.bytes: dict[int, int] = {}
        super().__init__(port, hello(LAYOUT, 1, generation=generation, streams=streams), target=1.0)

    def read(self, stream: int) -> None:
        reader = self.readers[stream]
        count = self.sockets[stream].recv_into(reader.get_buffer())
        if count == 0:
            self.ended = True
            raise EndedError(f"stream {stream} of {self.link}")
        self.bytes[stream] = self.bytes.get(stream, 0) + count
        for message in reader.buffer_updated(count):
            self.seen.append((stream, message))
            self.inbox.append(message)

    def answer(self, pull: PullReq) -> None:
        """Never."""

    def catch_up(self) -> list[int]:
        """Take every fragment once; bytes by socket, the control stream first."""
        drive([self], lambda: len(self.anchors) == LAYOUT.num_fragments, "the catch-up")
        return [self.bytes.get(stream, 0) for stream in sorted(self.sockets)]


@pytest.mark.rule("chunk.streams.either")
@pytest.mark.parametrize("streams", [0, 4])
def test_the_catch_up_of_a_late_joiner_goes_over_its_data_streams(processes: Processes, streams: int) -> None:
    """f32 is ready to be sent with the HELLO, before a data stream can be there."""
    syncer = processes.syncer("--learners", "2", "--total-steps", "1000000", *ALONE)
    first = Trainer(syncer.port, hello(LAYOUT, 0), target=1.0)
    first.initialize([np.zeros(fragment.numel, np.float32) for fragment in LAYOUT.fragments])
    drive([first], lambda: len(first.answered) >= 2, "the first rounds")
    first.answer = lambda pull: None  # type: ignore[method-assign]  # nothing new is broadcast from here on
    for generation in range(1, JOINS + 1):
        joiner = Counting(syncer.port, generation, streams)
        counts = joiner.catch_up()
        joiner.close()
        if streams == 0 or (counts[0] < 10_000 and all(counts[1:])):
            break
    else:
        raise AssertionError(f"the control stream carried values: {counts}")
    assert sum(counts) > 4 * LAYOUT.numel
    assert CONTROL in joiner.bytes or streams
    syncer.kill()
    first.close()
