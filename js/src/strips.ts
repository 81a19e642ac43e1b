/** Strips beside a heatmap's rows: numbers of the user's code, one per token. */

import { CallCancelled } from "./client";
import { colorIndex, type Palette } from "./colors";
import { h, setAttribute } from "./dom";
import { float, toNumber } from "./format";
import { rowsIn, type Size, type Window } from "./geometry";
import type { Page } from "./page";
import type { TileReply } from "./protocol";
import { symmetric } from "./scale";

const STRIP = 12;
/** Between the strips and the picture. */
const GAP = 4;

interface Shown {
  name: string;
  values: number[];
  canvas: HTMLCanvasElement;
}

export class Strips {
  readonly element = h("div", { class: "lv-strips", "data-test": "strips" });
  private site = "";
  private all: Shown[] = [];
  private asked = "";

  constructor(
    private readonly page: Page,
    private readonly changed: () => void,
  ) {}

  /** Ask for the strips of a site, where they may be other ones than those here. */
  want(site: string): void {
    const { run, overlays } = this.page.store.now.kernel;
    const asked = JSON.stringify([site, run, overlays]);
    if (asked === this.asked) return;
    this.asked = asked;
    if (overlays === 0) return;
    void this.load(site, asked);
  }

  private async load(site: string, asked: string): Promise<void> {
    try {
      const { result } = await this.page.client.call("strips", { site }, { key: "strips" }).answer;
      if (this.asked !== asked) return;
      this.site = result.site;
      this.all = result.strips.map(({ name, values }) => ({
        name,
        values: values.map((value) => toNumber(value) ?? NaN),
        canvas: h("canvas", { class: "lv-strip", title: name, "data-test": "strip" }),
      }));
    } catch (error) {
      if (error instanceof CallCancelled) return;
      this.all = [];
    }
    this.changed();
  }

  /** Those that belong beside the rows of a tile: its rows are the tokens they were given for. */
  private of(reply: TileReply): Shown[] {
    if (reply.site !== this.site || reply.dims[reply.rows_dim] !== "token") return [];
    return this.all.filter(({ values }) => values.length === reply.plane[0]);
  }

  width(reply: TileReply): number {
    const count = this.of(reply).length;
    return count === 0 ? 0 : count * STRIP + GAP;
  }

  /** What they say at a row, " · loss 0.5"; "" without any. */
  say(reply: TileReply, row: number): string {
    return this.of(reply).map(({ name, values }) => ` · ${name} ${float(values[row] ?? NaN)}`).join("");
  }

  draw(reply: TileReply, view: Window, size: Size, palette: Palette): void {
    const shown = this.of(reply);
    this.element.replaceChildren(...shown.map(({ canvas }) => canvas));
    this.element.style.width = `${this.width(reply)}px`;
    for (const { canvas, values, name } of shown) {
      const finite = values.filter((value) => Number.isFinite(value)).map(Math.abs);
      const limit = finite.length > 0 ? finite.reduce((a, b) => Math.max(a, b)) : 0;
      setAttribute(canvas, "title", `${name}: ${float(-limit, 3)} to ${float(limit, 3)}`);
      canvas.width = 1;
      canvas.height = Math.max(1, Math.round(size.height));
      canvas.style.height = `${size.height}px`;
      const context = canvas.getContext("2d");
      if (!context) continue;
      const image = context.createImageData(1, canvas.height);
      const pixels = new Uint32Array(image.data.buffer);
      for (let y = 0; y < canvas.height; y += 1) {
        const value = values[view.row0 + Math.floor((y / canvas.height) * rowsIn(view))] ?? NaN;
        const at = colorIndex(value, symmetric(limit));
        pixels[y] = at < 0 ? palette.nan : Number.isFinite(value) ? (palette.words[at] ?? 0) : palette.inf;
      }
      context.putImageData(image, 0, 0);
    }
  }
}
