import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { weightAt } from "../src/attention";
import { barShare, binEdges } from "../src/distribution";
import { lensCell, lensColour, stemOf, difference } from "../src/lens";
import { largest } from "../src/norms";
import { Page } from "../src/page";
import type { AttentionReply, LensReply, NormsReply, State } from "../src/protocol";
import { opOf } from "../src/source";
import { tabAt, Views } from "../src/views";
import { clampedIndex } from "../src/whichrun";
import { FakeModel, HELLO, serve, settled, STATE } from "./fakemodel";

const LENS: LensReply = {
  run: 1, sites: ["model.layers.0", "model.layers.1"], labels: ["a", "b"], start: 0, total: 2, batch: 1, row: 0, k: 2,
  ids: [1, 2, 3, 4, 5, 6, 7, 8], probabilities: [0.5, 0.1, 0.6, 0.1, 0.7, 0.1, 0.8, 0.1],
  before: [0.5, 0.1, 0.9, 0.1, 0.7, 0.1, "nan", 0.1], vocabulary: [1, 3, 5, 7, 8], texts: ["one", "three", "five", "seven", "eight"],
  way: "norm → head", difference: 0,
};

describe("numbers of the views", () => {
  it("goes along the tabs and around", () => {
    expect([tabAt("ArrowRight", 5, 6), tabAt("ArrowLeft", 0, 6), tabAt("Home", 3, 6), tabAt("End", 3, 6)]).toEqual([0, 5, 0, 5]);
    expect(tabAt("a", 3, 6)).toBe(-1);
  });

  it("scales bins", () => {
    expect(barShare(50, 100, false)).toBe(0.5);
    expect(barShare(1, 1000, true)).toBeGreaterThan(0.09);
    expect(barShare(0, 100, true)).toBe(0);
    expect(binEdges(-1, 1, 4, 0)).toEqual([-1, -0.5]);
    expect(binEdges(-1, 1, 4, 3)[1]).toBe(1);
  });

  it("finds the largest finite norm", () => {
    expect(largest([1, "nan", 3, "inf", 2])).toBe(3);
    expect(largest(["nan"])).toBe(0);
  });

  it("reads a lens's flat lists layer by layer", () => {
    const texts = new Map(LENS.vocabulary.map((id, i) => [id, LENS.texts[i] ?? ""]));
    const cell = lensCell(LENS, texts, 1, 1);
    expect([cell.text, cell.probability, cell.top[1]?.text]).toEqual(["seven", 0.8, "eight"]);
    expect(lensCell(LENS, texts, 0, 1).change).toBeCloseTo(-0.3);
    expect(lensCell({ ...LENS, before: [] }, texts, 0, 0).change).toBeNull();
  });

  it("colours a loss and a gain apart, and keeps text readable", () => {
    const cell = { layer: 0, token: 0, text: "", probability: 1, change: -0.5, top: [] };
    expect(lensColour(cell, "latest")).toBe("color-mix(in srgb, var(--lv-accent) 45%, var(--lv-bg))");
    expect(lensColour(cell, "difference")).toContain("--lv-bad");
    expect(lensColour({ ...cell, probability: NaN }, "latest")).toContain(" 0%");
  });

  it("names layers and ops without what they share", () => {
    expect(stemOf(LENS.sites)).toBe("model.layers.");
    expect(stemOf(["a.0", "b.1"])).toBe("");
    expect(opOf("h.0.attn/matmul.1", "h.0.attn")).toBe("matmul.1");
    expect(opOf("h.0.attn/matmul", "h.1.attn")).toBe("h.0.attn/matmul");
  });

  it("looks up a weight in pooled cells", () => {
    const reply = { row_step: 2, column_step: 3, columns: 2 } as AttentionReply;
    expect(weightAt(reply, new Float32Array([1, 2, 3, 4]), 3, 4)).toBe(4);
  });

  it("clamps what is typed, and says what is exact", () => {
    expect([clampedIndex("7", 3), clampedIndex("-1", 3), clampedIndex("x", 3)]).toEqual([2, 0, 0]);
    expect(difference(0)).toContain("bit for bit");
    expect(difference(1e-6)).toContain("1e−6");
  });
});

describe("tabs", () => {
  const NORMS: NormsReply = {
    site: "", run: 1, shape: [1, 2, 3], index: [0], rows_are: "tokens", labels: ["The", "␣end"], norm: [3, "inf"],
    rms: [1, "inf"], baseline_norm: [2, 1], baseline_rms: [1, 1], width: 3, note: "",
  };
  const RUN1: State = { ...STATE, run: 1, selected: "model.layers.0.mlp", tokens: ["The", "␣end"] };
  let model: FakeModel;
  let controller: AbortController;
  let views: Views;
  let page: Page;

  const tab = (name: string): HTMLElement => {
    const found = views.element.querySelector<HTMLElement>(`[data-test="tab-${name}"]`);
    if (!found) throw new Error(name);
    return found;
  };
  const asked = (method: string): number => model.methods().filter((sent) => sent === method).length;

  beforeEach(async () => {
    vi.spyOn(HTMLCanvasElement.prototype, "getContext").mockReturnValue(null);
    model = new FakeModel();
    controller = new AbortController();
    serve(model, { ...HELLO, state: RUN1 });
    const { kernel } = model;
    model.kernel = (request) => {
      if (request.method === "views") {
        const site = String(request.params["site"]);
        model.ok(request, { site, reasons: [{ view: "attention", reason: "no attention here" },
          { view: "norms", reason: site.endsWith("1.mlp") ? "no rows" : "" }] });
      } else if (request.method === "norms") model.ok(request, { ...NORMS, site: request.params["site"] });
      else kernel(request);
    };
    page = new Page(model, controller.signal);
    views = new Views(page, controller.signal, document.createElement("section"));
    document.body.append(views.element);
    await page.start();
    await settled();
  });

  afterEach(() => {
    controller.abort();
    views.element.remove();
    vi.restoreAllMocks();
  });

  it("asks for a view when it is chosen, and not before", async () => {
    expect(asked("norms")).toBe(0);
    tab("norms").click();
    await settled();
    expect(asked("norms")).toBe(1);
    const rows = views.element.querySelectorAll<HTMLElement>("[data-row]");
    expect([...rows].map((row) => row.dataset["value"])).toEqual(["3", "inf"]);
    expect(rows[0]?.textContent).toContain("3 (2)");
    tab("heatmap").click();
    tab("norms").click();
    await settled();
    expect(asked("norms")).toBe(1);
  });

  it("disables a tab with its reason, and does not choose it", () => {
    expect(tab("attention").getAttribute("aria-disabled")).toBe("true");
    expect(tab("attention").title).toBe("no attention here");
    tab("attention").click();
    expect(tab("heatmap").getAttribute("aria-selected")).toBe("true");
    expect(asked("attention")).toBe(0);
  });

  it("keeps the chosen tab over a change of site, and says why it shows nothing", async () => {
    tab("norms").click();
    await settled();
    await page.select("model.layers.1.mlp");
    await settled();
    expect(tab("norms").getAttribute("aria-selected")).toBe("true");
    expect(views.element.querySelector('[data-test="norms-message"]')?.textContent).toContain("no rows");
    await page.select("model.layers.0");
    await settled();
    expect(views.element.querySelector<HTMLElement>('[data-test="norms-message"]')?.hidden).toBe(true);
    expect(model.last("norms").params["site"]).toBe("model.layers.0");
  });

  it("moves by arrows without choosing", () => {
    tab("heatmap").focus();
    tab("heatmap").dispatchEvent(new KeyboardEvent("keydown", { key: "End", bubbles: true, cancelable: true }));
    expect(document.activeElement).toBe(tab("source"));
    expect(tab("heatmap").getAttribute("aria-selected")).toBe("true");
  });

  it("shows what went wrong, and asks again", async () => {
    const { kernel } = model;
    model.kernel = (request) => {
      if (request.method === "lens") model.receive({ kind: "error", id: request.id, type: "X", message: "no lens" });
      else kernel(request);
    };
    tab("lens").click();
    await settled();
    const message = views.element.querySelector('[data-test="lens-message"]');
    expect(message?.textContent).toContain("no lens");
    expect(message?.getAttribute("role")).toBe("alert");
    message?.querySelector("button")?.click();
    await settled();
    expect(asked("lens")).toBe(2);
  });
});
