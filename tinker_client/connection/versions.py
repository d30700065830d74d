"""Which SDK goes with which server."""

import re
from importlib import metadata

from tinker_client.errors import UserError

# SkyRL releases, and the releases of the tinker SDK that speak their protocol: from the first one, below the second.
# tinker 0.38 loads a state in one request without a model id, which SkyRL 0.4 refuses with status 422.
SKYRL = "0.4"  # the one that this project is written for
TINKER_FOR_SKYRL = {"0.4": ("0.25", "0.26")}


def installed(package: str) -> str | None:
    """The version of an installed package, None if it is not."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def check_pair(tinker: str, skyrl: str) -> None:
    """Raises UserError if this SDK is known not to work with this SkyRL; a SkyRL that is not in the table may."""
    first, below = TINKER_FOR_SKYRL.get(".".join(skyrl.split(".")[:2]), ("0", "999"))
    if not _numbers(first) <= _numbers(tinker) < _numbers(below):
        raise UserError(
            f"tinker {tinker} does not work with SkyRL {skyrl}: run `uv pip install 'tinker>={first},<{below}'`"
        )


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:3]]
