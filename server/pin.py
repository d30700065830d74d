"""`python -m server.pin` pins every package that the project's requirements lead to, in pyproject.toml.

A lock file would do the same, but it names the host that each file came from. So the versions stand in uv's
`constraint-dependencies`, as names and versions only, for all extras, platforms and Python versions of the project:
`uv sync` then installs the same from any index. What the project itself requires at one version is left out.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import tyro
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tinker_client.connection.engines import find_uv
from tinker_client.errors import UserError, exit_on_user_error

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
LIST = "constraint-dependencies = [\n"  # the last entry of the file
EXPORT = ("export", "--quiet", "--all-extras", "--no-hashes", "--no-annotate", "--no-header", "--no-emit-project")


@dataclass(frozen=True)
class Config:
    """Write the versions of all packages into pyproject.toml. Run it after every change of the requirements.

    Versions that are pinned already stay, packages that nothing requires any more go, and new ones are added.
    """

    upgrade: tyro.conf.FlagCreatePairsOff[bool] = False
    """Take the newest versions that the requirements allow."""


def main(config: Config) -> None:
    before = PYPROJECT.read_text()
    pins = resolve(before, upgrade=config.upgrade)
    PYPROJECT.write_text(with_pins(before, pins))
    kept = set(pins) & set(pins_of(before))
    print(f"{PYPROJECT.name}: {len(pins)} versions, {len(kept)} of them as before")


def resolve(pyproject: str, *, upgrade: bool = False) -> list[str]:
    """The pins, sorted by name, of all packages that the text of a pyproject.toml leads to but does not itself pin.

    One is `name==version`; where the version depends on the platform or on Python, there is one with each marker.
    The text's own pins are kept unless `upgrade`. Raises UserError if uv finds no versions that fit together.
    """
    fixed = {canonicalize_name(line.name) for line in requirements_of(pyproject) if _is_exact(line)}
    start = [] if upgrade else [pin for pin in pins_of(pyproject) if Requirement(pin).name not in fixed]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "pyproject.toml").write_text(with_pins(pyproject, start))
        command = [str(find_uv()), *EXPORT, "--python", sys.executable]
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise UserError("no versions fit together, as uv says above: change a requirement, or give --upgrade")
    lines = [Requirement(line) for line in done.stdout.splitlines()]
    versions = Counter(line.name for line in lines)
    pins = [
        f"{line.name}{line.specifier}" + (f" ; {line.marker}" if versions[line.name] > 1 else "")
        for line in lines
        if line.name not in fixed
    ]
    return sorted(pins, key=lambda pin: (Requirement(pin).name, pin))


def with_pins(pyproject: str, pins: Sequence[str]) -> str:
    """The text of a pyproject.toml with these pins in place of its own; all else stays to the letter.

    Raises UserError if the list is not the last entry of the file.
    """
    entries = (f"    {_quoted(pin)},\n" for pin in pins)
    written = pyproject.partition(LIST)[0] + LIST + "".join(entries) + "]\n"
    if _without_pins(written) != _without_pins(pyproject) or pins_of(written) != list(pins):
        raise UserError(f"{LIST.strip()} has to be the last entry of pyproject.toml, and in [tool.uv]: move it there")
    return written


def pins_of(pyproject: str) -> list[str]:
    """The pins in the text of a pyproject.toml."""
    return list(_uv_settings(tomllib.loads(pyproject)).get("constraint-dependencies", []))


def requirements_of(pyproject: str) -> list[Requirement]:
    """What the text of a pyproject.toml requires, with all extras."""
    project = tomllib.loads(pyproject)["project"]
    extras = project.get("optional-dependencies", {})
    return [Requirement(line) for line in chain(project.get("dependencies", []), *extras.values())]


def _is_exact(requirement: Requirement) -> bool:
    return requirement.marker is None and re.fullmatch(r"==[^*,]+", str(requirement.specifier)) is not None


def _without_pins(pyproject: str) -> dict[str, Any]:
    content = tomllib.loads(pyproject)
    _uv_settings(content).pop("constraint-dependencies", None)
    return content


def _uv_settings(content: dict[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = content.get("tool", {}).get("uv", {})
    return settings


def _quoted(pin: str) -> str:
    return f'"{pin}"' if '"' not in pin else f"'{pin}'"


if __name__ == "__main__":
    with exit_on_user_error():
        main(tyro.cli(Config, prog="python -m server.pin"))
