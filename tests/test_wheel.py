"""The built distributions: what they hold, and that a machine without node can use them.

The wheel is installed into an empty environment which sees this one's dependencies, but not this
checkout: a `.pth` file adds a folder of packages without reading the `.pth` files in it, by which
an editable installation is found.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


class Environment:
    """A virtual environment with one wheel in it."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        venv.create(folder, with_pip=False)
        self.folder = folder
        self.bin = folder / ("Scripts" if sys.platform == "win32" else "bin")
        scheme = {"base": str(folder), "platbase": str(folder)}
        self.packages = Path(sysconfig.get_path("purelib", "venv", scheme))
        outer = sysconfig.get_path("purelib")
        (self.packages / "outer.pth").write_text(outer + "\n", encoding="utf-8")
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "install"]
        run(*pip, "--quiet", "--no-deps", "--no-index", "--ignore-installed", str(wheel))

    def python(self, code: str) -> subprocess.CompletedProcess[str]:
        """Run code where neither node nor the checkout is to be seen."""
        return subprocess.run(
            [self.bin / "python", "-I", "-c", code],
            cwd=self.folder,
            env={"PATH": str(self.bin), "HOME": str(self.folder)},
            capture_output=True,
            text=True,
            check=False,
        )


def run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist of this checkout and the wheel built from that sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT))
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("lensview-*-py3-none-any.whl")
    return found


@pytest.fixture
def environment(tmp_path: Path, wheel: Path) -> Environment:
    return Environment(tmp_path / "environment", wheel)


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    package = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "lensview").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if ".dist-info/" not in name} == package
    assert "lensview/py.typed" in package


def test_the_sdist_holds_the_sources(built: Path) -> None:
    (sdist,) = built.glob("lensview-*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"js/package-lock.json", "tests/conftest.py", "constraints.txt", "LICENSE"} <= names
    assert not [name for name in names if "node_modules" in name or name.startswith(".venv")]
    assert sdist.stat().st_size < 3_000_000


def test_works_without_node(environment: Environment) -> None:
    code = (
        "import shutil; assert shutil.which('node') is None\n"
        "import lensview, torch\n"
        "print(lensview.__file__)\n"
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        "shell.run_line_magic('load_ext', 'lensview')\n"
        "assert 'lens' in shell.magics_manager.magics['line']\n"
        "explorer = lensview.explore(torch.nn.Linear(2, 2))\n"
        "assert len(explorer._esm) > 1000, explorer._esm\n"
        "explorer.close()\n"
    )
    done = environment.python(code)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == environment.packages / "lensview" / "__init__.py"


def test_a_missing_bundle_is_an_import_error_that_says_so(environment: Environment) -> None:
    for path in (environment.packages / "lensview" / "explorer" / "static").iterdir():
        path.unlink()
    done = environment.python(
        "import lensview\n"
        "try: lensview.explore\n"
        "except ImportError as error: print(error)\n"
        "else: raise SystemExit('no error')\n"
    )
    assert done.returncode == 0, done.stderr
    assert "static" in done.stdout
    assert "install again" in done.stdout
