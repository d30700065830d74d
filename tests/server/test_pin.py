"""pyproject.toml pins every package; server/pin.py, which writes the pins, on packages that are made up here."""

import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from server import pin
from tinker_client.errors import UserError

PYPROJECT = pin.PYPROJECT.read_text()
LOCK = pin.PYPROJECT.with_name("uv.lock")


def pinned() -> dict[str, str]:
    """What pyproject.toml demands of each package by name, on this machine."""
    lines = [*pin.requirements_of(PYPROJECT), *map(Requirement, pin.pins_of(PYPROJECT))]
    return {
        canonicalize_name(line.name): str(line.specifier)
        for line in lines
        if line.marker is None or line.marker.evaluate()
    }


def test_whatever_is_installed_for_the_project_is_pinned_at_its_version():
    installed, seen = {}, set()
    to_visit = [(line, extra) for line in pin.requirements_of(PYPROJECT) for extra in (line.extras or {""})]
    while to_visit:
        line, extra = to_visit.pop()
        name = canonicalize_name(line.name)
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # of an extra that is not installed
        installed[name] = f"=={distribution.version}"
        for needed in map(Requirement, distribution.requires or []):
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                to_visit += [(needed, extra) for extra in (needed.extras or {""})]
    assert len(installed) > 50
    versions = pinned()
    assert installed == {name: versions.get(name) for name in installed}


@pytest.mark.skipif(not LOCK.exists(), reason="`uv sync` writes uv.lock")
def test_whatever_could_be_installed_on_any_platform_is_pinned():
    locked = [package for package in tomllib.loads(LOCK.read_text())["package"] if "virtual" not in package["source"]]
    pins = [*pin.requirements_of(PYPROJECT), *map(Requirement, pin.pins_of(PYPROJECT))]
    assert {(package["name"], f"=={package['version']}") for package in locked} == {
        (canonicalize_name(line.name), str(line.specifier)) for line in pins
    }


def test_pins_are_sorted_names_with_one_version_each():
    pins = [Requirement(line) for line in pin.pins_of(PYPROJECT)]
    assert all(len(line.specifier) == 1 and str(line.specifier).startswith("==") for line in pins)
    assert not any("*" in str(line.specifier) or line.url or line.extras for line in pins)
    names = [(line.name, str(line.marker or "")) for line in pins]
    assert names == sorted(set(names))
    required = {canonicalize_name(line.name) for line in pin.requirements_of(PYPROJECT)}
    assert not required & {name for name, _ in names}


def wheel(folder: Path, name: str, version: str, *needs: str) -> None:
    """A package without content. needs: what it requires."""
    metadata_text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata_text += "".join(f"Requires-Dist: {line}\n" for line in needs)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        info = f"{name}-{version}.dist-info"
        archive.writestr(f"{info}/METADATA", metadata_text)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """The only packages there are: `top` requires `middle`, an extra requires `side` and so `beside`."""
    wheel(tmp_path, "top", "1.0", "middle", "forked<2; sys_platform=='linux'", "forked>=2; sys_platform!='linux'")
    wheel(tmp_path, "middle", "1.0")
    wheel(tmp_path, "side", "1.0", "beside; sys_platform=='darwin'")
    wheel(tmp_path, "beside", "1.0")
    wheel(tmp_path, "forked", "1.5")
    wheel(tmp_path, "forked", "2.5")
    return tmp_path


def pyproject(packages: Path, required: str = '"top==1.0"') -> str:
    return f"""# A comment.
[project]
name = "game"
version = "0"
requires-python = ">=3.12"
dependencies = [{required}]   # kept as it is
optional-dependencies.more = ["side==1.0"]

[tool.uv]
package = false
no-index = true
find-links = ["{packages}"]
constraint-dependencies = [
]
"""


def test_all_extras_and_platforms_are_pinned_and_nothing_else_is_written(packages: Path):
    before = pyproject(packages)
    pins = pin.resolve(before)
    assert pins == [
        "beside==1.0",
        'forked==1.5 ; sys_platform == "linux"',
        'forked==2.5 ; sys_platform != "linux"',
        "middle==1.0",
    ]
    after = pin.with_pins(before, pins)
    assert pin.pins_of(after) == pins
    assert after.startswith(before.removesuffix("]\n"))
    assert pin.with_pins(after, []) == before


def test_versions_stay_until_they_are_upgraded_or_required_otherwise(packages: Path):
    before = pin.with_pins(pyproject(packages), pin.resolve(pyproject(packages)))
    wheel(packages, "middle", "1.1")
    wheel(packages, "forked", "2.6")
    assert pin.resolve(before) == pin.pins_of(before)
    assert "middle==1.1" in pin.resolve(before, upgrade=True)
    assert 'forked==2.6 ; sys_platform != "linux"' in pin.resolve(before, upgrade=True)
    required = before.replace('"top==1.0"', '"top==1.0", "middle==1.1"')
    assert not any(line.startswith("middle") for line in pin.resolve(required))
    at_least = before.replace('"top==1.0"', '"top==1.0", "middle>=1.0"')
    assert "middle==1.0" in pin.resolve(at_least)
    assert pin.resolve(before.replace('"top==1.0"', "")) == ["beside==1.0"]


def test_what_cannot_be_pinned_ends_in_one_line(packages: Path):
    with pytest.raises(UserError, match="--upgrade"):
        pin.resolve(pyproject(packages, '"top==1.0", "middle==3.0"'))
    with pytest.raises(UserError, match="last entry"):
        pin.with_pins(pyproject(packages) + "\n[tool.ruff]\nline-length = 120\n", [])
