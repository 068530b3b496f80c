"""`Subscriber`: follows a run without taking part in it, for evaluation, export or a dashboard.

    with Subscriber(parameters, "host:29400", observer_id=7, num_fragments=4) as subscriber:
        while not subscriber.done:
            if subscriber.update(timeout=60):
                evaluate(parameters)
        subscriber.finish()

The syncer must know the id: `yeto-syncer --observers 7`.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Literal, Self

import numpy.typing as npt

from yeto_proto._generated.types import Dtype
from yeto_proto.layout import Layout, Pattern

from .arguments import make_layout, parse_contract, parse_hash
from .channel import Address
from .client import SyncerClient
from .final_cut import wait_for_cut
from .fragments import FragmentValues
from .logs import show_log_lines
from .parameters import Parameters, as_parameters

__all__ = ["Subscriber"]


class Subscriber:
    """Keeps `parameters` at the newest global values; sends nothing but its greeting.

    observer_id: an id that the syncer was given with --observers.  The other arguments as those of `Learner`,
    and equal to the learners' where they make the layout and the session.
    """

    def __init__(
        self,
        parameters: Mapping[str, npt.NDArray[Any]] | Parameters,
        address: str | Address,
        *,
        observer_id: int,
        num_fragments: int = 4,
        dtype: Dtype | str = "bf16",
        num_streams: int = 4,
        session_contract: bytes | str | None = None,
        syncer_profile: bytes | str | None = None,
        hmac_key: bytes | str | os.PathLike[str] | None = None,
        tls: ssl.SSLContext | None = None,
        pattern: Pattern = "binpack",
        matrix_merge: Literal["rda", "iso"] = "rda",
        avg_name_regex: str | None = None,
        connect_timeout_s: float = 900.0,
        finalization_timeout_s: float = 900.0,
    ) -> None:
        self._parameters = as_parameters(parameters)
        self.layout: Layout = make_layout(
            self._parameters.shapes(), num_fragments, pattern, matrix_merge, avg_name_regex
        )
        self.client = SyncerClient(
            address,
            observer_id,
            self.layout,
            dtype,
            num_streams,
            connect_timeout_s,
            None,
            finalization_timeout_s,
            parse_contract(session_contract),
            parse_hash(syncer_profile, "syncer_profile"),
            hmac_key,
            tls=tls,
            accept_rewound_catch_up=True,
        )
        self._values = FragmentValues(self._parameters, self.layout, self.client.dtype, Dtype.F32, 0.0)
        self.versions: list[int | None] = [None] * self.layout.num_fragments

    def __enter__(self) -> Self:
        show_log_lines()
        try:
            self.client.start()
        except BaseException:
            self.client.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()

    def update(self, timeout: float = 0.0) -> list[int]:
        """Install the broadcasts that arrived, waiting up to `timeout` seconds for the first one.

        Returns the ids of the fragments that changed.  Raises ValueError for parameters that no longer fit,
        and what `SyncerClient.check_health` raises.
        """
        client = self.client
        self._parameters.check()
        client.check_health()
        if timeout > 0:
            client.wait_for(lambda: client.has_updates or client.finalizing.is_set(), timeout)
        changed = set()
        while (update := client.next_update()) is not None:
            self._values.write_raw(update)
            self.versions[update.fragment_id] = update.version
            changed.add(update.fragment_id)
        return sorted(changed)

    @property
    def done(self) -> bool:
        """True once the syncer has announced the final cut."""
        return self.client.finalizing.is_set()

    @property
    def global_step(self) -> int:
        """The newest version seen."""
        return max((version for version in self.versions if version is not None), default=0)

    def finish(self, timeout: float | None = None) -> None:
        """Wait for the f32 final cut and write it over the parameters.

        An observer acknowledges nothing.  Raises TimeoutError, with the parameters untouched, and what
        `SyncerClient.check_health` raises.
        """
        manifest, finals = wait_for_cut(self.client, timeout)
        self._parameters.check()
        self._values.overwrite(finals)
        self.versions = list(manifest.versions)
