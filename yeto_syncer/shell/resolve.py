"""Where a setting's value comes from: flag, environment, file, preset, default, in this order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from yeto_syncer.shell.settings import BY_NAME, ENV_PREFIX, PRESETS, SETTINGS, Value


class BadValueError(Exception):
    """A value in the environment or the file that cannot be used: what, where, and what to do."""

    def __init__(self, what: str, where: str, fix: str) -> None:
        super().__init__(f"{what}; {where}; {fix}")


@dataclass(frozen=True, slots=True)
class Resolved:
    """The value of every setting, and where it came from: `flag`, `env NAME`, `file PATH`, `preset NAME` or
    `default`."""

    values: Mapping[str, Value]
    origins: Mapping[str, str]

    def __getitem__(self, name: str) -> Value:
        return self.values[name]

    def given(self, name: str) -> bool:
        """Whether somebody asked for this value."""
        return self.origins[name] != "default"

    def lines(self) -> list[str]:
        """The settings as TOML with the origin of each value; unset ones are comments."""
        result: list[str] = []
        for setting in SETTINGS:
            value = self.values[setting.name]
            shown = f"# {setting.name}" if value is None else f"{setting.name} = {setting.kind.show(value)}"
            result.append(f"{shown:<46} # {self.origins[setting.name]}")
        return result


def resolve(
    flags: Mapping[str, Value], environ: Mapping[str, str], document: Mapping[str, object], path: str = ""
) -> Resolved:
    """Bring the layers together.

    `flags` holds only what was given; `document` is the parsed TOML file at `path`. Raises BadValueError
    for a key that does not exist or a value of the wrong kind.
    """
    values: dict[str, Value] = {setting.name: setting.default for setting in SETTINGS}
    origins = dict.fromkeys(values, "default")
    layers = [_from_file(document, path), _from_env(environ), (dict(flags), dict.fromkeys(flags, "flag"))]
    preset = next((layer["preset"] for layer, _ in reversed(layers) if layer.get("preset")), None)
    if preset is not None:
        layers.insert(0, (dict(PRESETS[preset]), dict.fromkeys(PRESETS[preset], f"preset {preset}")))
    for layer, names in layers:
        for name, value in layer.items():
            values[name] = value
            origins[name] = names[name]
    return Resolved(values, origins)


def _from_env(environ: Mapping[str, str]) -> tuple[dict[str, Value], dict[str, str]]:
    values: dict[str, Value] = {}
    for setting in SETTINGS:
        text = environ.get(setting.env, "")
        if not text:
            continue
        try:
            values[setting.name] = setting.kind.parse(text)
        except ValueError as error:
            raise BadValueError(
                f"{setting.env} {error}", "environment", f"correct it or unset {setting.env}"
            ) from None
    return values, {name: f"env {BY_NAME[name].env}" for name in values}


def _from_file(document: Mapping[str, object], path: str) -> tuple[dict[str, Value], dict[str, str]]:
    values: dict[str, Value] = {}
    for key, value in document.items():
        setting = BY_NAME.get(key.replace("-", "_"))
        if setting is None:
            raise BadValueError(f"unknown key {key!r}", path, "see yeto-syncer --help for the names")
        try:
            values[setting.name] = setting.kind.accept(value)
        except ValueError as error:
            raise BadValueError(f"{key} {error}", path, "correct the value") from None
    return values, dict.fromkeys(values, f"file {path}")


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Variables with our prefix that name no setting: most likely a slip of the pen."""
    known = {setting.env for setting in SETTINGS}
    return sorted(name for name in environ if name.startswith(ENV_PREFIX) and name not in known)
