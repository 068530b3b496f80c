"""Who may knock: addresses whose handshakes fail too often are turned away for a while. No sockets, no clock.

Each address has a number of failures that it may use up, and gets them back evenly over a minute. An address
from which a learner was admitted is never turned away: its machine also holds whoever shares it.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from dataclasses import dataclass

WINDOW_S = 60.0
"""How long it takes until all failures are forgiven."""

REMEMBERED = 4096
"""Addresses that are remembered; the one that was quiet for longest is forgotten first."""

IPV6_PREFIX = 64
"""Bits of an IPv6 address that count: the rest is the peer's to choose."""


@dataclass(slots=True)
class _Account:
    left: float
    seen_at: float
    told: bool = False


class Doorman:
    """Counts failed handshakes per address. `limit` failures a minute are allowed; 0 allows all."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._accounts: OrderedDict[str, _Account] = OrderedDict()
        self._known: OrderedDict[str, None] = OrderedDict()

    def turns_away(self, host: str, now: float) -> bool:
        """Whether a new connection of this address is closed unheard."""
        key = _key(host)
        account = self._account(key, now)
        return account is not None and account.left < 1.0 and key not in self._known

    def failed(self, host: str, now: float) -> bool:
        """A handshake of this address has failed; True when from now on it is turned away."""
        if not self._limit:
            return False
        key = _key(host)
        account = self._account(key, now)
        if account is None:
            account = self._accounts[key] = _Account(float(self._limit), now)
            if len(self._accounts) > REMEMBERED:
                self._accounts.popitem(last=False)
        account.left = max(account.left - 1.0, 0.0)
        if account.left >= 1.0 or account.told or key in self._known:
            return False
        account.told = True
        return True

    def admitted(self, host: str) -> None:
        """A learner came in from this address."""
        key = _key(host)
        self._known[key] = None
        self._known.move_to_end(key)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)

    def _account(self, key: str, now: float) -> _Account | None:
        # As it stands now; None for an address that has nothing to its name.
        account = self._accounts.get(key)
        if account is None:
            return None
        account.left = min(
            account.left + (now - account.seen_at) * self._limit / WINDOW_S, float(self._limit)
        )
        account.seen_at = now
        if account.left >= self._limit:
            del self._accounts[key]
            return None
        self._accounts.move_to_end(key)
        return account


def _key(host: str) -> str:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((int(address), IPV6_PREFIX), strict=False))
    return str(address)
