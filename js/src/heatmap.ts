/** The heatmap: puts bar, picture, labels, legend and read-out together around one tile. */

import { paletteOf, type Palette } from "./colors";
import { h, later, nextFrame, onResize, setAttribute, setText, show } from "./dom";
import { boxOf, fitted, sameWindow, showing, zoomed, type Cell, type Size, type Window } from "./geometry";
import { axisHeight, Gutter, gutterWidth } from "./gutter";
import { Heatbar } from "./heatbar";
import { Legend } from "./legend";
import type { Page } from "./page";
import { Picture } from "./picture";
import { place, Pointer, type Frame } from "./pointer";
import { blockOf, Readout } from "./readout";
import { symmetric } from "./scale";
import { Selection } from "./selection";
import { pieceOf, type PageState } from "./state";
import { Strips } from "./strips";
import type { Theme } from "./theme";
import { Tiles } from "./tiles";

/** No tile is larger: 512 x 512 floats are the 1 MiB that a message may have. */
const MOST_CELLS = 512;
/** Tiles are asked for in steps of this many pixels, so that a resize asks rarely. */
const GRAIN = 32;
const LARGEST_CELL = { width: 44, height: 64 };
/** A picture of an earlier selection is dimmed when its successor takes longer than this. */
const PATIENCE = 200;

export class Heatmap {
  readonly element: HTMLElement;
  private readonly tiles: Tiles;
  private readonly bar: Heatbar;
  private readonly legend: Legend;
  private readonly readout: Readout;
  private readonly picture = new Picture();
  private readonly gutter = new Gutter();
  private readonly pointer: Pointer;
  private readonly selection: Selection;
  private readonly strips: Strips;
  private readonly cursor = h("div", { class: "lv-cursor", hidden: "" });
  private readonly message = h("div", { class: "lv-message", "data-test": "heatmap-message" });
  private readonly stats = h("div", { class: "lv-stats", "data-test": "stats" });
  private readonly surface: HTMLElement;
  private readonly stage: HTMLElement;
  private readonly paintSoon: () => void;
  private undim: () => void = () => undefined;

  private palette: Palette = paletteOf("light");
  private view: Window | null = null;
  private cell: Cell | null = null;
  private frame: Frame | null = null;
  private tokens = -1;
  paints = 0;

  constructor(
    private readonly page: Page,
    private readonly signal: AbortSignal,
    private readonly painted: (paints: number, hash: string) => void,
  ) {
    this.tiles = new Tiles(page, () => { this.refresh(); });
    this.paintSoon = nextFrame(signal, () => { this.paint(); });
    this.bar = new Heatbar(page, signal, () => {
      this.view = null;
      this.ask();
    });
    this.legend = new Legend(signal, () => {
      this.ask();
      this.paintSoon();
    });
    this.selection = new Selection(page, signal);
    this.strips = new Strips(page, this.paintSoon);
    this.readout = new Readout(page, signal);
    this.surface = h("div", {
      class: "lv-surface", tabindex: "0", role: "application", "aria-roledescription": "heatmap",
      "aria-label": "Heatmap. Arrow keys move over cells, plus and minus zoom, Enter selects the cell, " +
        "r its row, c its column, Escape goes back.",
      "data-test": "heatmap-surface",
    }, this.picture.canvas, this.selection.box, this.cursor);
    this.pointer = new Pointer(this.surface, () => this.frame, {
      look: (cell) => { this.look(cell); },
      zoomTo: (view) => { this.zoom(view); },
      zoomBy: (factor, at) => {
        if (this.frame) this.zoom(zoomed(this.frame.view, this.frame.whole, at, factor));
      },
      reset: () => { this.zoom(null); },
      select: (part) => { this.choose(part); },
      deselect: () => {
        const { chosen } = this.selection;
        this.selection.set(null, null);
        return chosen;
      },
    }, () => this.bar.mode, signal);
    this.gutter.onPick(signal, () => this.frame, (part) => { this.choose(part); });
    this.surface.append(this.pointer.band);
    this.bar.reset.addEventListener("click", () => { this.zoom(null); }, { signal });
    this.stage = h("div", { class: "lv-stage" },
      h("div", { class: "lv-gutter-side" }, this.gutter.rows, this.strips.element), this.surface, this.gutter.columns);
    const area = h("div", { class: "lv-stage-area" }, this.stage, this.message);
    this.element = h("section", { class: "lv-panel lv-heat", "aria-label": "Heatmap" },
      this.bar.element, area,
      h("div", { class: "lv-heat-foot" }, this.legend.element, this.selection.bar,
        this.readout.element, this.stats));
    this.refresh();
    onResize(signal, this.stage, () => {
      this.ask();
      this.paintSoon();
    });
    page.store.watch(signal, (now, before) => { this.follow(now, before); });
  }

  setTheme(theme: Theme): void {
    this.palette = paletteOf(theme);
    this.paintSoon();
  }

  private follow(now: PageState, before: PageState): void {
    const rerun = now.kernel.run !== before.kernel.run;
    // The plane may have other rows now, and a window that does not fit is an error.
    const regrown = rerun && now.kernel.tokens.length !== this.tokens;
    if (now.selected !== before.selected) this.bar.dims.view.reset();
    const piece = pieceOf(now) !== pieceOf(before);
    if (now.selected !== before.selected || regrown || piece) this.view = null;
    this.tokens = now.kernel.tokens.length;
    this.bar.update(now);
    this.ask();
  }

  /** Ask for the tile that the present selection, view and size need. */
  private ask(): void {
    const { hello, selected, which, kernel } = this.page.store.now;
    if (!hello) return;
    if (selected === "" || kernel.run === 0) {
      if (this.tiles.status !== "empty") this.tiles.clear();
      this.refresh();
      return;
    }
    this.strips.want(selected);
    const { width, height } = this.space();
    if (width === 0 || height === 0) return;
    const { rows_dim: rowsDim, columns_dim: columnsDim, index } = this.bar.dims.view.params();
    const scale = window.devicePixelRatio || 1;
    const cells = (pixels: number): number =>
      Math.max(GRAIN, Math.min(MOST_CELLS, Math.floor((pixels * scale) / GRAIN) * GRAIN));
    this.tiles.want({
      site: selected,
      which,
      run: kernel.run,
      index,
      rowsDim,
      columnsDim,
      percentile: this.legend.percentile,
      rank: pieceOf(this.page.store.now),
      view: this.view,
      rows: cells(height),
      columns: cells(width),
    });
  }

  /** The room for a picture, less its labels. */
  private space(): Size {
    const { clientWidth, clientHeight } = this.stage;
    const { tile } = this.tiles;
    const { tokens } = this.page.store.now.kernel;
    const gutter = gutterWidth(tile?.reply ?? { row_labels: tokens, plane: [tokens.length, 0] });
    const strips = tile ? this.strips.width(tile.reply) : 0;
    return {
      width: Math.max(0, clientWidth - gutter - strips - 6),
      height: Math.max(0, clientHeight - axisHeight(tile?.reply ?? null)),
    };
  }

  /** The tiles have changed: show their status, and paint. */
  private refresh(): void {
    const { status, tile } = this.tiles;
    if (status === "error" && (this.view || !this.bar.dims.view.plain)) {
      // The part that was looked at may be what is gone: try the whole.
      this.view = null;
      this.bar.dims.view.reset();
      this.ask();
      return;
    }
    setAttribute(this.element, "data-state", status);
    const { hello, selected, kernel } = this.page.store.now;
    const empty = hello === null ? "" : selected === ""
      ? "Select a module in the tree to see its values."
      : kernel.run === 0 ? "Run a prompt to see what passes here." : "";
    const problem = status === "error" ? this.tiles.problem : "";
    setText(this.message, problem || (status === "empty" ? empty : tile ? "" : "Loading…"));
    setAttribute(this.message, "role", status === "error" ? "alert" : null);
    show(this.message, tile === null);
    show(this.legend.element, tile !== null);
    show(this.readout.element, tile !== null);
    show(this.stats, tile !== null);
    this.stage.classList.toggle("lv-invisible", tile === null);
    this.undim();
    this.stage.classList.remove("lv-stale");
    if (status === "loading") {
      this.undim = later(this.signal, PATIENCE, () => { this.stage.classList.add("lv-stale"); });
    }
    if (tile && status === "shown" && this.view && !fits(this.view, tile.whole)) this.view = null;
    this.bar.describe(tile?.reply ?? null, this.view !== null);
    setText(this.stats, tile?.reply.stats ?? "");
    if (status === "shown" || tile === null) this.selection.follow(tile);
    if (tile) this.paintSoon();
    else this.clear();
  }

  private clear(): void {
    this.frame = null;
    this.cell = null;
    this.gutter.clear();
    this.picture.clear();
    show(this.cursor, false);
    this.readout.update(null, null);
  }

  private paint(): void {
    const { tile } = this.tiles;
    if (!tile) return;
    const gutter = gutterWidth(tile.reply);
    this.stage.style.setProperty("--lv-gutter", `${gutter + this.strips.width(tile.reply)}px`);
    this.stage.style.setProperty("--lv-axis", `${axisHeight(tile.reply)}px`);
    const space = this.space();
    if (space.width === 0 || space.height === 0) {
      // Hosts hide everything for a moment (a theme switch); a size that is back before the next
      // frame is no resize, so nobody else would ask for this picture again.
      later(this.signal, 200, this.paintSoon);
      return;
    }
    const view = this.view ?? tile.whole;
    const size = fitted(space, view, LARGEST_CELL);
    this.frame = { size, view, whole: tile.whole };
    const scale = this.legend.scaleOf(tile.reply) ?? symmetric(0);
    const hash = this.picture.paint({ tile, view, size, palette: this.palette, scale });
    this.gutter.update(tile.reply, view, size);
    this.strips.draw(tile.reply, view, size, this.palette);
    this.selection.draw(this.frame);
    this.legend.update(this.palette, tile.reply);
    this.look(this.cell);
    if (hash === null) return;
    this.paints += 1;
    this.painted(this.paints, hash);
  }

  private zoom(view: Window | null): void {
    const whole = this.tiles.tile?.whole;
    this.view = view && whole && !sameWindow(view, whole) ? view : null;
    this.bar.describe(this.tiles.tile?.reply ?? null, this.view !== null);
    this.ask();
    this.paintSoon();
  }

  private choose(part: Window): void {
    this.selection.set(this.tiles.tile, part);
    this.paintSoon();
  }

  private look(cell: Cell | null): void {
    this.cell = cell;
    const { tile } = this.tiles;
    if (cell && this.view) {
      const view = showing(this.view, cell);
      if (!sameWindow(view, this.view)) {
        this.zoom(view);
        return;
      }
    }
    const visible = tile !== null && cell !== null && this.frame !== null;
    show(this.cursor, visible);
    if (visible && this.frame) {
      place(this.cursor, boxOf(blockOf(tile, cell), this.frame.size, this.frame.view));
    }
    this.readout.update(tile, cell, tile && cell ? this.strips.say(tile.reply, cell.row) : "");
  }
}

function fits(view: Window, whole: Window): boolean {
  return view.row1 <= whole.row1 && view.column1 <= whole.column1;
}
