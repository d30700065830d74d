"""Imports within the repository run downwards, and the game and its data load without a model's libraries."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]

# Parts of the repository, and which other parts each may import.
BOTTOM = {"textcraft", "tinker_client.errors"}
PARTS = {
    "textcraft": set(),
    "sft_data": {"textcraft"},
    "tinker_client.errors": set(),
    "tinker_client.run": BOTTOM,
    "tinker_client.connection": BOTTOM | {"tinker_client.run"},
    "tinker_client.play": BOTTOM | {"tinker_client.run", "tinker_client.connection"},
    "tinker_client.train": BOTTOM | {"tinker_client.run", "tinker_client.connection", "tinker_client.play"},
    "tinker_client.evaluation": BOTTOM | {"tinker_client.run", "tinker_client.connection", "tinker_client.play"},
}
# What is run, and so may import every part and be imported by none.
SCRIPTS = {
    "train_sft", "train_grpo", "evaluate", "benchmarks", "server", "tests", "textcraft.__main__", "sft_data.__main__",
    "sft_data.rank", "tinker_client.__main__", "tinker_client.dry_run",
}  # fmt: skip
# What takes seconds to import; the client because it imports them in its turn.
HEAVY = {"tinker", "transformers", "torch", "tinker_client", "sft_data.rank"}
LIGHT = {"textcraft", "sft_data"}

Import = tuple[int, str, bool]  # the line, what is imported, and whether that happens when the file is


def within(name: str, parts: set[str]) -> str | None:
    """The longest of the dotted names that `name` is or lies in."""
    return max((part for part in parts if f"{name}.".startswith(f"{part}.")), key=len, default=None)


def imports(tree: ast.AST, package: str, at_import: bool = True) -> Iterator[Import]:
    """Every import of a syntax tree; of `from a import b` the name a.b, which is a module or something in one."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, at_import) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{source}.{alias.name}", at_import) for alias in node.names)
        else:
            in_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports(node, package, at_import and not in_function)


def violations(root: Path) -> list[str]:
    """Each import that the layers forbid, as `file:line imports name`."""
    found = []
    for top in (*LIGHT, "tinker_client"):
        for path in sorted((root / top).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            module, package = ".".join(parts), ".".join(parts[:-1])
            part = within(module, {*PARTS, *SCRIPTS})
            for line, name, at_import in imports(ast.parse(path.read_text()), package):
                target = within(name, {*PARTS, *SCRIPTS})
                downwards = part in SCRIPTS or target is None or target == part or target in PARTS.get(part, ())
                heavy = top in LIGHT and module != "sft_data.rank" and at_import and within(name, HEAVY) is not None
                if heavy or not downwards:
                    found.append(f"{path.relative_to(root)}:{line} imports {name}")
    return found


def test_imports_run_downwards_only():
    assert violations(REPOSITORY) == []


def test_every_file_of_the_client_has_its_layer():
    modules = [".".join(path.relative_to(REPOSITORY).with_suffix("").parts) for path in client_files()]
    assert [module for module in modules if within(module, {*PARTS, *SCRIPTS}) is None] == ["tinker_client.__init__"]


def client_files() -> list[Path]:
    return sorted((REPOSITORY / "tinker_client").rglob("*.py"))


@pytest.mark.parametrize(
    ("path", "line", "name"),
    [
        ("tinker_client/run/a.py", "from tinker_client.connection import models", "tinker_client.connection.models"),
        ("tinker_client/connection/a.py", "import tinker_client.play.chat as c", "tinker_client.play.chat"),
        ("tinker_client/connection/a.py", "from ..play.chat import Chat", "tinker_client.play.chat.Chat"),
        ("tinker_client/play/a.py", "from tinker_client import train", "tinker_client.train"),
        ("tinker_client/train/a.py", "def f():\n    import tinker_client.evaluation", "tinker_client.evaluation"),
        ("tinker_client/evaluation/a.py", "from tinker_client.train import datums", "tinker_client.train.datums"),
        ("tinker_client/play/a.py", "from tinker_client.dry_run import print_play", "tinker_client.dry_run.print_play"),
        ("tinker_client/play/a.py", "import sft_data", "sft_data"),
        ("tinker_client/run/a.py", "import train_grpo", "train_grpo"),
        ("tinker_client/errors.py", "import textcraft", "textcraft"),
        ("textcraft/a.py", "import sft_data.wording", "sft_data.wording"),
        ("textcraft/a.py", "try:\n    import torch.nn\nexcept ImportError: pass", "torch.nn"),
        ("sft_data/a.py", "def f():\n    from tinker_client.errors import UserError", "tinker_client.errors.UserError"),
        ("sft_data/__main__.py", "from sft_data import rank", "sft_data.rank"),
    ],
)  # fmt: skip
def test_a_planted_import_is_named(path: str, line: str, name: str, tmp_path: Path):
    planted = tmp_path / path
    planted.parent.mkdir(parents=True)
    planted.write_text(line + "\n")
    (found,) = violations(tmp_path)
    assert found.startswith(f"{path}:")
    assert found.endswith(f" imports {name}")


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("sft_data/a.py", "def f():\n    import transformers, torch"),
        ("sft_data/__main__.py", "def f():\n    from sft_data import rank"),
        ("sft_data/rank.py", "from tinker_client.connection import connect"),
        ("tinker_client/dry_run.py", "import tinker_client.evaluation, tinker_client.train"),
        ("tinker_client/train/a.py", "from tinker_client.train import datums\nfrom tinker_client import errors"),
    ],
)
def test_what_is_allowed_passes(path: str, line: str, tmp_path: Path):
    planted = tmp_path / path
    planted.parent.mkdir(parents=True)
    planted.write_text(line + "\n")
    assert violations(tmp_path) == []
