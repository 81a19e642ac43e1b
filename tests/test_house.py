"""The rules of the house: linters, types, the built bundle, sizes, and who may import whom."""

from __future__ import annotations

import ast
import json
import re
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import lensview

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "lensview"
STATIC = PACKAGE / "explorer" / "static"
MAX_BUNDLE_BYTES = 160_000

GROUND = (
    "errors extras version watch sites resolve values modules indices regions sources functions "
    "streams portable returns interventions changes operations keeping plan tensors"
)
FLOORS = (
    {*GROUND.split(), "demo_model"},
    {"taps", "traces"},
    {"parallel"},
    {"wrappers"},
    {"capture"},
    {"session"},
    {"bridge", "datasets", "figures"},
    {"explorer"},
    {"magic"},
)
"""The rooms of the package, from the ground up. A room may import from its own floor and below."""


def run(*command: str, cwd: Path = ROOT) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def tracked(*patterns: str) -> list[Path]:
    """Files that git knows of, or would on the next `git add`."""
    names = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns)
    paths = [ROOT / name for name in names.split("\0") if name]
    return [path for path in paths if path.is_file()]


# --- Python ---------------------------------------------------------------------------------------


def test_ruff() -> None:
    run(sys.executable, "-m", "ruff", "check")


def test_ruff_format() -> None:
    run(sys.executable, "-m", "ruff", "format", "--check")


def test_mypy() -> None:
    run(sys.executable, "-m", "mypy")


# --- The front end --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def js() -> Path:
    folder = ROOT / "js"
    assert (folder / "node_modules").is_dir(), "the front end's tools are missing: run `make test`"
    return folder


def test_front_end_checks(js: Path) -> None:
    run("npm", "run", "--silent", "check", cwd=js)


def test_front_end_units(js: Path) -> None:
    run("npm", "test", "--silent", cwd=js)


def bundle() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in STATIC.iterdir() if path.is_file()}


def test_the_bundle_is_what_the_source_builds(js: Path) -> None:
    before = bundle()
    run("npm", "run", "--silent", "build", cwd=js)
    after = bundle()
    changed = sorted(name for name in before | after if before.get(name) != after.get(name))
    assert changed == [], "the bundle was older than js/src; it is rebuilt now, commit it"


def test_the_bundle_is_committed_and_small() -> None:
    known = run("git", "ls-files", str(STATIC)).split()
    assert {Path(name).name for name in known} == set(bundle())
    assert 0 < sum(map(len, bundle().values())) <= MAX_BUNDLE_BYTES


def test_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    front_end = json.loads((ROOT / "js" / "package.json").read_text())["version"]
    assert project == front_end == lensview.__version__


# --- Imports --------------------------------------------------------------------------------------


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports(path: Path, *, for_types: bool = True) -> Iterator[str]:
    """What a file imports, as absolute names: in functions too, and with `for_types` also what
    only a type checker sees."""
    name = module_name(path)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree if for_types else without_type_blocks(tree)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield inner if inner in MODULES else base
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            literals = (a.value for a in node.args[:1] if isinstance(a, ast.Constant))
            yield from (text for text in literals if isinstance(text, str))


def without_type_blocks(tree: ast.Module) -> ast.Module:
    tree.body = [
        part
        for part in tree.body
        if not (isinstance(part, ast.If) and ast.unparse(part.test) == "TYPE_CHECKING")
    ]
    return tree


def top(name: str) -> str:
    return name.partition(".")[0]


def floor_of(name: str) -> int:
    room = name.split(".")[1]
    floors = [floor for floor, rooms in enumerate(FLOORS) if room in rooms]
    assert floors, f"{name} has no floor yet: give it one in FLOORS"
    return floors[0]


INNER = [name for name in MODULES if name != "lensview"]
"""All but `lensview/__init__.py`, which stands above the house and names what is public."""


@pytest.mark.parametrize("name", INNER)
def test_imports_go_down(name: str) -> None:
    for target in imports(MODULES[name]):
        if top(target) == "lensview":
            assert target != "lensview", f"{name} imports the package, not the module it needs"
            assert target in MODULES, f"{name} imports {target}, which does not exist"
            assert floor_of(target) <= floor_of(name), f"{name} imports {target}, of a floor above"


def test_imports_make_no_circle() -> None:
    """Two modules may name each other's types; only one may need the other to run."""
    inner = set(INNER)
    graph = {n: {*imports(MODULES[n], for_types=False)} & inner - {n} for n in INNER}
    # What imports nothing that is left, or is imported by nothing that is left, is in no circle.
    while True:
        imported = set().union(*graph.values())
        outside = {name for name, targets in graph.items() if not targets or name not in imported}
        if not outside:
            break
        graph = {name: graph[name] - outside for name in graph.keys() - outside}
    assert graph == {}, f"these import each other in a circle: {graph}"


@pytest.mark.parametrize("name", INNER)
def test_only_the_top_knows_jupyter(name: str) -> None:
    if floor_of(name) < floor_of("lensview.explorer"):
        jupyter = {"IPython", "ipywidgets", "anywidget", "traitlets", "ipykernel", "comm"}
        assert jupyter & {top(target) for target in imports(MODULES[name])} == set()


# --- Files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("patterns", [["lensview/**.py"], ["js/src/**"]], ids=["python", "js"])
def test_files_are_short(patterns: list[str]) -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in tracked(*patterns)
    }
    assert lengths, "no file was found"
    assert {name: length for name, length in lengths.items() if length > 500} == {}
    assert statistics.median(lengths.values()) < 160


def test_no_pickle() -> None:
    """Files and messages may come from strangers: nothing that runs code when it is read."""
    banned = re.compile(r"\bpickle\b(?!-)|\btorch\.load\(|\bmarshal\.|\bdill\b|\bshelve\b")
    for name, path in MODULES.items():
        code = ast.unparse(without_docstrings(ast.parse(path.read_text(encoding="utf-8"))))
        assert not banned.search(code), f"{name}: {banned.search(code)}"


def without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [
                part
                for part in node.body
                if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))
            ] or [ast.Pass()]
    return tree


def test_no_path_of_one_machine() -> None:
    somewhere = re.compile(r"(?<![\w.:/$}>-])/(?:root|work|home|Users)/\w")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
        for path in tracked()
        if path != Path(__file__)
        for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1)
        if somewhere.search(line)
    ]
    assert found == []
