"""What the explorer costs in a real JupyterLab, beside the same picture by a plotly FigureWidget.

    python -m benchmarks.explorer [--rounds 5] [--layers 400]

Starts JupyterLab and Chromium on this machine. Times are medians, taken in the page from the
action to the frame in which the result is seen; both sides are warm and measured in turns. Kernel
time is the processor time of the kernel's whole process. Bytes are those of the websocket.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, WebSocket, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.browser.driver import Notebook, write_notebook  # noqa: E402
from tests.browser.server import Server  # noqa: E402
from tests.conftest import BROWSER_FLAGS, BROWSERS  # noqa: E402

LIMIT = 90_000
"""Milliseconds that one figure may take."""
TRIES = 4

SETUP = """%load_ext lensview
import os, time, json, torch, ipywidgets, plotly.graph_objects as go
import lensview as lv
from tiny import Words, Tiny
from big import Big, Wide
big = Big(LAYERS)
wide = {n: torch.nn.Sequential(Wide(n, n, odd=False), torch.nn.Tanh()) for n in (512, 2048)}
planes = {n: [torch.randn(n, n).numpy() for _ in range(2)] for n in wide}
words, model = Words(), Tiny()
words('a b c d e')
print(os.getpid())"""
TREE = "ex = lv.explore(big); ex"
ICICLE = """rows = [r for r in lv.LocalSession(big).tree()]
go.FigureWidget(go.Icicle(ids=[r.path or '.' for r in rows], labels=[r.name for r in rows],
    parents=['' if not r.path else r.path.rpartition('.')[0] or '.' for r in rows]))"""
HEAT = "ex = lv.explore(wide[SIZE], inputs=torch.zeros(1)); ex"
FIGURE = "shown = 0; fig = go.FigureWidget(go.Heatmap(z=planes[SIZE][0], colorscale='RdBu')); fig"
UPDATE = "shown = globals().get('shown', 0) + 1; fig.data[0].z = planes[SIZE][shown % 2]"
PROMPT = "ex = lv.explore(model, words, 'a b'); ex"
OWN = """def forward(text):
    ids = torch.tensor([words(text)['input_ids']])
    with torch.no_grad(): return model(ids)['logits'][0, -1].softmax(-1).topk(10)
forward('a b'); times = []
for _ in range(20):
    begun = time.perf_counter(); forward('a b c'); times.append(time.perf_counter() - begun)
print(sorted(times)[10] * 1000)"""
BARS = "bars = go.FigureWidget(go.Bar(x=list(range(10)), y=list(range(10)))); bars"
BARS_UPDATE = """turn = globals().get('turn', 0) + 1
top = forward('a b c' if turn % 2 else 'c d e')
bars.data[0].y = top.values.tolist()"""

ACT = """async ([what, argument, seen, limit]) => {
  const app = window.jupyterapp, content = app.shell.currentWidget.content;
  const view = document.querySelector('.lensview');
  const mark = () => view?.getAttribute('data-hash') + view?.getAttribute('data-run') +
    [...document.querySelectorAll('.js-plotly-plot')].map((e) =>
      (e.querySelector('.hm image')?.getAttribute('href') ?? '').length + ' ' +
      (e.querySelector('.hm image')?.getAttribute('href') ?? '').slice(-400) +
      [...e.querySelectorAll('.point path')].map((p) => p.getAttribute('d')).join()).join();
  const before = mark(), began = performance.now();
  if (what === 'cell') {
    content.activeCellIndex = argument;
    content.deselectAll();
    void app.commands.execute('notebook:run-cell');
  } else document.querySelector(argument).click();
  while (performance.now() - began < limit) {
    await new Promise((done) => requestAnimationFrame(done));
    if (seen === '' ? mark() !== before : document.querySelector(seen)) {
      return performance.now() - began;
    }
  }
  return NaN;
}"""


@dataclass
class Cost:
    """What one side took, round by round."""

    times: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    largest: int = 0


class Bench:
    """A notebook, its kernel's processor time and the bytes that its page receives."""

    def __init__(self, page: Page, server: Server, cells: list[str]) -> None:
        self.frames: list[int] = []
        page.on("websocket", self._socket)
        write_notebook(server.root / "bench.ipynb", cells)
        self.notebook = Notebook(page, server, "bench.ipynb")
        self.page = page
        self.pid = int(self.notebook.text(0))

    def _socket(self, socket: WebSocket) -> None:
        socket.on("framereceived", lambda frame: self.frames.append(len(frame)))

    def cpu(self) -> float:
        """Milliseconds of processor time that the kernel has used, all threads together."""
        stats = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(s.read_text().split()[0]) for s in stats) / 1e6

    def act(self, cost: Cost, what: str, argument: Any, seen: str = "") -> None:
        """Do something in the page, and note what it took until `seen` (any change) is there."""
        self.page.wait_for_timeout(400)
        self.frames.clear()
        began = self.cpu()
        took = self.page.evaluate(ACT, [what, argument, seen, LIMIT])
        self.page.wait_for_timeout(400)
        cost.times.append(took)
        cost.cpu.append(self.cpu() - began)
        cost.bytes.append(sum(self.frames))
        cost.largest = max([cost.largest, *self.frames])

    def clear(self) -> None:
        """Take all outputs away."""
        self.notebook.command("notebook:clear-all-cell-outputs")


@contextmanager
def opened(folder: Path) -> Iterator[tuple[Page, Server]]:
    """A page of a browser, and a JupyterLab."""
    server = Server(folder)
    for name in ("tiny.py", "big.py"):
        shutil.copy(ROOT / "tests" / "browser" / name, server.root)
    try:
        with sync_playwright() as playwright:
            found = next((p for p in map(shutil.which, BROWSERS) if p), None)
            browser = playwright.chromium.launch(executable_path=found, args=BROWSER_FLAGS)
            page = browser.new_page(viewport={"width": 1400, "height": 1100})
            page.set_default_timeout(LIMIT)
            yield page, server
    finally:
        server.close()


def trees(bench: Bench, rounds: int, cell: Callable[[str], int]) -> tuple[Cost, Cost]:
    """From the cell to the first rows of the tree; of plotly's once, which takes half a minute."""
    ours, theirs = Cost(), Cost()
    for _ in range(rounds):
        bench.clear()
        bench.act(ours, "cell", cell(TREE), ".lensview [data-site]")
    bench.clear()
    bench.act(theirs, "cell", cell(ICICLE), ".js-plotly-plot .slice")
    return ours, theirs


def heatmaps(bench: Bench, rounds: int, size: int, cell: Callable[[str], int]) -> tuple[Cost, Cost]:
    """From a click on a site to its heatmap, of a run that is there."""
    ours, theirs = Cost(), Cost()
    sized = str(size)
    bench.clear()
    bench.act(Cost(), "cell", cell(HEAT.replace("SIZE", sized)), '.lensview[data-run="1"]')
    bench.act(Cost(), "click", '.lensview [data-site="0"]')
    for turn in range(rounds):
        site = ("1", "0")[turn % 2]
        bench.act(ours, "click", f'.lensview [data-site="{site}"]')
    # On a busy machine FigureWidget now and then comes up without its data: again, then.
    for _ in range(TRIES):
        bench.clear()
        shown = Cost()
        bench.act(shown, "cell", cell(FIGURE.replace("SIZE", sized)), ".js-plotly-plot .hm image")
        if not math.isnan(shown.times[0]):
            break
    for _ in range(rounds):
        bench.act(theirs, "cell", cell(UPDATE.replace("SIZE", sized)))
    return ours, theirs


def prompts(bench: Bench, rounds: int, cell: Callable[[str], int]) -> tuple[Cost, Cost, float]:
    """From Enter to the next-token table of a small model; and the model's own milliseconds."""
    ours, theirs = Cost(), Cost()
    bench.clear()
    own = float(bench.notebook.text(cell(OWN)))
    bench.act(Cost(), "cell", cell(PROMPT), '.lensview[data-run="1"]')
    for turn in range(rounds):
        bench.page.locator('[data-test="prompt"]').fill(("a b c", "c d e")[turn % 2])
        bench.act(ours, "click", '[data-test="run"]', f'.lensview[data-run="{turn + 2}"]')
    bench.clear()
    bench.act(Cost(), "cell", cell(BARS), ".js-plotly-plot .point path")
    for _ in range(rounds):
        bench.act(theirs, "cell", cell(BARS_UPDATE))
    return ours, theirs, own


def line(name: str, ours: Cost, theirs: Cost, less: float = 0.0) -> str:
    """One row of the table."""

    def told(cost: Cost) -> tuple[float, float, float]:
        middle = statistics.median
        return middle(cost.times) - less, middle(cost.cpu), middle(cost.bytes) / 1e6

    (t, c, b), (pt, pc, pb) = told(ours), told(theirs)
    largest = f"{ours.largest / 1e6:.3f}"
    return (
        f"{name:38} {t:8.0f} {pt:9.0f} {pt / max(t, 0.1):6.1f}x {c:8.0f} {pc:9.0f} "
        f"{b:8.3f} {pb:8.3f} {largest:>8} {theirs.largest / 1e6:8.3f}"
    )


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=400, help="400 make 10,000 modules")
    options = parser.parse_args()
    sizes = (512, 2048)
    cells = [
        SETUP.replace("LAYERS", str(options.layers)),
        TREE,
        ICICLE,
        PROMPT,
        OWN,
        BARS,
        BARS_UPDATE,
    ]
    cells += [c.replace("SIZE", str(n)) for n in sizes for c in (HEAT, FIGURE, UPDATE)]
    heads = ("ms", "plotly", "ratio", "cpu ms", "plotly", "MB", "plotly", "largest", "plotly")
    widths = (8, 9, 7, 8, 9, 8, 8, 8, 8)
    print(" " * 38, *(f"{h:>{w}}" for h, w in zip(heads, widths, strict=True)))
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder)) as (page, server):
        bench = Bench(page, server, cells)
        bench.act(Cost(), "cell", cells.index(BARS), ".js-plotly-plot .point path")
        print(
            line(
                "%lens cell to tree of 10,000 modules",
                *trees(bench, min(3, options.rounds), cells.index),
            ),
            flush=True,
        )
        for size in sizes:
            rounds = options.rounds if size < 1000 else min(3, options.rounds)
            name = f"site click to heatmap, {size} x {size}"
            print(line(name, *heatmaps(bench, rounds, size, cells.index)), flush=True)
        ours, theirs, own = prompts(bench, options.rounds, cells.index)
        print(line("prompt to tables, less the model's own", ours, theirs, own))
        print(json.dumps({"model's own ms": round(own, 2), "rounds": options.rounds}))


if __name__ == "__main__":
    main()
