"""The implementation under test: `sut.yaml`, and how its commands are made of it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from .trace import Trace
from .verdict import SkipError

__all__ = ["OURS", "BadSutError", "Known", "Sut", "read"]

OURS: Final = Path(__file__).parent / "suts" / "yeto.yaml"
_KEYS: Final = {
    "name": str, "env": dict, "folder": str, "start-timeout-s": (int, float), "codec": dict, "client": dict,
    "server": dict, "known-failures": list,
}  # fmt: skip
_ROLE_KEYS: Final = {"command": list, "ready": dict, "settings": dict}


class BadSutError(Exception):
    """A file that does not describe an implementation, in one line for people."""


@dataclass(frozen=True)
class Known:
    """A failure that is expected."""

    case: str
    why: str
    role: str | None = None

    def fits(self, trace: Trace, role: str) -> bool:
        return self.role in (None, role) and fnmatchcase(trace.id, self.case)


@dataclass(frozen=True)
class Sut:
    """One implementation and its commands."""

    name: str
    folder: Path
    roles: Mapping[str, Mapping[str, Any]]
    env: Mapping[str, str] = field(default_factory=dict)
    start_timeout: float = 30.0
    known: Sequence[Known] = ()

    def command(self, role: str, values: Mapping[str, Any]) -> list[str]:
        """The command line of a role, with `{names}` replaced. Raises BadSutError."""
        return [_filled(str(each), values) for each in self.roles[role]["command"]]

    def server(self, settings: Mapping[str, Any], values: Mapping[str, Any]) -> list[str]:
        """The command line of the server with the settings of a case.

        Raises SkipError for one that it does not know.
        """
        forms = self.roles["server"].get("settings", {})
        base = [str(each) for each in self.roles["server"]["command"]]
        line = [_filled(each, {**values, **settings}) for each in base]
        for name, value in settings.items():
            if any(f"{{{name}}}" in each for each in base):
                continue
            if name not in forms:
                raise SkipError(f"the sut file names no setting {name}")
            form = forms[name]
            if isinstance(form, Mapping):
                form = form.get(value, [])
            shown = str(value).lower() if isinstance(value, bool) else str(value)
            line += [_filled(str(each), {**values, "value": _filled(shown, values)}) for each in form]
        return line

    def understood(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Those settings that the server's command line can say."""
        forms = self.roles["server"].get("settings", {})
        line = " ".join(map(str, self.roles["server"]["command"]))
        return {name: value for name, value in settings.items() if name in forms or f"{{{name}}}" in line}

    def known_failure(self, trace: Trace, role: str) -> str | None:
        """Why this case may fail, if it may."""
        return next((each.why for each in self.known if each.fits(trace, role)), None)


def _filled(text: str, values: Mapping[str, Any]) -> str:
    for name, value in {"python": sys.executable, **values}.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def read_yaml(path: Path, fix: str) -> Any:
    """What a YAML file holds. `fix` is what to do about one that cannot be read. Raises BadSutError."""
    import yaml

    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadSutError(f"{path}: cannot be read: {error.strerror}; {fix}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # of a number of 5,000 digits, too
        raise BadSutError(f"{path}: is not YAML: {' '.join(str(error).split())}") from None


def read(path: Path) -> Sut:
    """The implementation that a file describes. Raises BadSutError."""
    data = read_yaml(path, "give --sut a file")
    _check(path, "", data, _KEYS)
    if "name" not in data:
        raise BadSutError(f"{path}: name: is missing; give the implementation a name")
    roles = {role: data[role] for role in ("codec", "client", "server") if role in data}
    if not roles:
        raise BadSutError(f"{path}: names no role; give it a codec, client or server")
    for role, each in roles.items():
        _check(path, f"{role}.", each, _ROLE_KEYS)
        if not each.get("command"):
            raise BadSutError(f"{path}: {role}.command: is missing; give the command line as a list")
    return Sut(
        name=data["name"],
        folder=path.resolve().parent / data.get("folder", "."),
        roles=roles,
        env={str(key): str(value) for key, value in data.get("env", {}).items()},
        start_timeout=float(data.get("start-timeout-s", 30)),
        known=[_known(path, each) for each in data.get("known-failures", [])],
    )


def _check(path: Path, prefix: str, data: Any, keys: Mapping[str, Any]) -> None:
    if not isinstance(data, dict):
        raise BadSutError(f"{path}: {prefix.rstrip('.') or 'the file'}: must be a mapping")
    for key, value in data.items():
        if key not in keys:
            raise BadSutError(f"{path}: {prefix}{key}: is not a key here; known are {', '.join(keys)}")
        if not isinstance(value, keys[key]):
            raise BadSutError(f"{path}: {prefix}{key}: has another form than it must have")


def _known(path: Path, each: Any) -> Known:
    if not isinstance(each, dict) or not {"case", "why"} <= set(each) <= {"case", "why", "role"}:
        raise BadSutError(f"{path}: known-failures: each has case and why, and may have role")
    return Known(str(each["case"]), str(each["why"]), each.get("role"))
