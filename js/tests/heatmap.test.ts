import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { Heatmap } from "../src/heatmap";
import { Page } from "../src/page";
import type { State } from "../src/protocol";
import { bufferOf, FakeModel, HELLO, serve, settled, STATE, TILE } from "./fakemodel";

const STATE1: State = { ...STATE, run: 1, selected: "model.layers.0.mlp", tokens: ["The", "␣end"] };

let model: FakeModel;
let controller: AbortController;
let page: Page;
let panel: HTMLElement;
let paints: { count: number; hash: string }[];

/** As much of a 2-d context as the page uses; what it is given is kept. */
function context(): object {
  const nothing = (): void => undefined;
  return {
    createImageData: (width: number, height: number) => ({ data: new Uint8ClampedArray(width * height * 4) }),
    putImageData: nothing, drawImage: nothing, fillRect: nothing, fillText: nothing, beginPath: nothing,
    moveTo: nothing, lineTo: nothing, stroke: nothing, createPattern: () => null,
  };
}

async function open(state: State = STATE1): Promise<void> {
  serve(model, { ...HELLO, state });
  page = new Page(model, controller.signal);
  const heatmap = new Heatmap(page, controller.signal, (count, hash) => paints.push({ count, hash }));
  panel = document.body.appendChild(heatmap.element);
  await page.start();
  await drawn();
}

async function drawn(): Promise<void> {
  await settled();
  await settled();
}

const find = (selector: string): HTMLElement => {
  const found = panel.querySelector<HTMLElement>(selector);
  if (!found) throw new Error(`nothing matches ${selector}`);
  return found;
};
const tiles = (): number => model.methods().filter((method) => method === "tile").length;
const key = (name: string): void => {
  find('[data-test="heatmap-surface"]').dispatchEvent(
    new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true }));
};

beforeEach(() => {
  vi.spyOn(HTMLCanvasElement.prototype, "getContext").mockImplementation(() => context() as never);
  vi.spyOn(Element.prototype, "clientWidth", "get").mockReturnValue(400);
  vi.spyOn(Element.prototype, "clientHeight", "get").mockReturnValue(300);
  model = new FakeModel();
  controller = new AbortController();
  paints = [];
});

afterEach(() => {
  controller.abort();
  panel.remove();
  vi.restoreAllMocks();
});

describe("Heatmap", () => {
  it("asks for one tile that fits its pixels, and paints it", async () => {
    await open();
    expect(tiles()).toBe(1);
    expect(model.last("tile").params).toEqual({
      site: "model.layers.0.mlp", which: "latest", window: null, max_rows: 256, max_columns: 352, index: [],
      rows_dim: null, columns_dim: null, percentile: null, rank: null,
    });
    expect(panel.dataset["state"]).toBe("shown");
    expect(paints.length).toBeGreaterThan(0);
    const labels = [...panel.querySelectorAll('[data-test="gutter-label"]')].map((label) => label.textContent);
    expect(labels).toEqual(["The", "␣end"]);
    expect(find('[data-test="legend-nan"]').hidden).toBe(false);
    expect(find('[data-test="legend-nan"]').textContent).toBe("NaN × 1");
    expect(find('[data-test="legend-inf"]').hidden).toBe(true);
    expect(find('[data-test="legend"]').textContent).toContain("−2");
    expect(find('[data-test="legend"]').textContent).toContain("+2");
  });

  it("never asks for more than a message may hold", async () => {
    vi.spyOn(Element.prototype, "clientWidth", "get").mockReturnValue(4000);
    vi.spyOn(Element.prototype, "clientHeight", "get").mockReturnValue(4000);
    await open();
    expect(model.last("tile").params).toMatchObject({ max_rows: 512, max_columns: 512 });
  });

  it("paints other colours for other values and another theme", async () => {
    await open();
    const first = paints.at(-1);
    model.kernel = (request) => {
      model.ok(request, { ...TILE, run: 2 }, [bufferOf([2, 2, 2, 2, 2, 2])]);
    };
    model.receive({ kind: "event", state: { ...STATE1, run: 2 } });
    await drawn();
    expect(paints.at(-1)?.hash).not.toBe(first?.hash);
    expect(paints.at(-1)?.count).toBeGreaterThan(first?.count ?? 0);
  });

  it("reads cells by keys", async () => {
    await open();
    key("ArrowRight");
    expect(find('[data-test="readout"]').textContent).toBe("token 0 The · feature 0−2");
    key("ArrowRight");
    key("ArrowDown");
    expect(find('[data-test="readout"]').textContent).toBe("token 1 ␣end · feature 10.5");
    key("ArrowLeft");
    expect(find('[data-test="readout"]').textContent).toBe("token 1 ␣end · feature 0NaN");
  });

  it("zooms into what it has without asking, and asks where detail is missing", async () => {
    await open();
    key("ArrowRight");
    key("+");
    await drawn();
    expect(tiles()).toBe(1);
    expect(find('[data-test="reset-zoom"]').hidden).toBe(false);
    key("Escape");
    expect(find('[data-test="reset-zoom"]').hidden).toBe(true);
    model.kernel = (request) => {
      model.ok(request, { ...TILE, site: "b", plane: [4, 3], row_step: 2, window: [0, 4, 0, 3] },
        [bufferOf([1, 2, 3, 4, 5, 6])]);
    };
    model.sync("selected", "b");
    await drawn();
    key("+");
    await drawn();
    expect(model.last("tile").params["window"]).not.toBeNull();
  });

  it("asks for one element exactly where cells stand for blocks", async () => {
    await open();
    model.kernel = (request) => {
      if (request.method === "value") model.ok(request, { text: "-0.12345678" });
      else model.ok(request, { ...TILE, site: "b", shape: [1, 4, 3], plane: [4, 3], row_step: 2, window: [0, 4, 0, 3] },
        [bufferOf([1, 2, 3, 4, 5, 6])]);
    };
    model.sync("selected", "b");
    await drawn();
    key("ArrowDown");
    key("ArrowDown");
    expect(find('[data-test="readout"]').textContent).toContain("largest of 2 × 1 here: 1");
    await new Promise((resolve) => setTimeout(resolve, 250));
    expect(model.last("value").params).toEqual({ site: "b", which: "latest", index: [0, 1, 0], rank: null });
    expect(find('[data-test="readout-value"]').textContent).toBe("−0.12345678");
  });

  it("says in place why there is no picture", async () => {
    await open();
    model.kernel = (request) => {
      model.receive({ kind: "error", id: request.id, type: "NotRecordedError", message: "nothing at <b>" });
    };
    model.sync("selected", "gone");
    await drawn();
    expect(panel.dataset["state"]).toBe("error");
    expect(find('[data-test="heatmap-message"]').textContent).toBe("nothing at <b>");
    expect(panel.querySelector("b")).toBeNull();
  });

  it("says so when every value is NaN, or 0", async () => {
    await open();
    model.kernel = (request) => {
      const dead = request.params["site"] === "nan";
      model.ok(request, { ...TILE, site: request.params["site"], low: dead ? null : 0, high: dead ? null : 0, nan: dead ? 6 : 0 },
        [bufferOf(Array<number>(6).fill(dead ? NaN : 0))]);
    };
    model.sync("selected", "nan");
    await drawn();
    expect(find('[data-test="legend"]').textContent).toContain("every value is NaN");
    model.sync("selected", "zero");
    await drawn();
    expect(find('[data-test="legend"]').textContent).toContain("every value is 0");
  });

  it("offers the leading dims, and the input side", async () => {
    await open();
    model.kernel = (request) => {
      model.ok(request, { ...TILE, site: request.params["site"], shape: [1, 4, 2, 3], rows_dim: 2, columns_dim: 3,
        dims: ["batch", "head", "token", "token"] }, [bufferOf([1, 2, 3, 4, 5, 6])]);
    };
    model.sync("selected", "attn");
    await drawn();
    const input = find('[data-dim="1"]') as HTMLInputElement;
    input.value = "9";
    input.dispatchEvent(new Event("change"));
    expect(input.value).toBe("3");
    expect(model.last("tile").params["index"]).toEqual([0, 3]);
    find('[data-test="side"] [data-value="input"]').click();
    expect(model.last("select").params).toEqual({ site: "attn:input" });
  });

  it("compares with the baseline once there are edits", async () => {
    await open();
    expect(find('[data-test="which"]').hidden).toBe(true);
    model.receive({ kind: "event", state: { ...STATE1, run: 2, edited: [{ id: 1, text: "a", probability: 1 }] } });
    expect(find('[data-test="which"]').hidden).toBe(false);
    find('[data-test="which"] [data-value="difference"]').click();
    expect(model.last("tile").params["which"]).toBe("difference");
    model.receive({ kind: "event", state: { ...STATE1, run: 3 } });
    expect(model.last("tile").params["which"]).toBe("latest");
    await drawn();
  });

  it("selects cells, rows and columns by key, and hands the region on when asked", async () => {
    await open();
    key("ArrowRight");
    key("ArrowRight");
    key("Enter");
    await drawn();
    expect(find('[data-test="selection"]').textContent).toBe("[0, 0, 1] · 1 element");
    expect(page.store.now.picked).toBeNull();
    key("r");
    expect(find('[data-test="selection"]').textContent).toBe("[0, 0] · 3 elements");
    key("c");
    expect(find('[data-test="selection"]').textContent).toBe("[0, :, 1] · 2 elements");
    find('[data-test="edit-selection"]').click();
    expect(page.store.now.picked).toEqual({ site: "model.layers.0.mlp", index: "0, :, 1" });
    key("Escape");
    expect(find('[data-test="selection"]').closest("[hidden]")).not.toBeNull();
  });

  it("asks for other dims, and drops a selection of the plane before", async () => {
    await open();
    key("ArrowRight");
    key("Enter");
    const rows = find('[data-test="rows-dim"]') as HTMLSelectElement;
    expect([...rows.options].map((option) => option.textContent)).toEqual(["batch", "token", "feature"]);
    model.kernel = (request) => {
      model.ok(request, { ...TILE, rows_dim: 2, columns_dim: 1, plane: [3, 2], rows: 3, columns: 2, window: [0, 3, 0, 2],
        row_labels: [], column_labels: ["The", "␣end"] }, [bufferOf([-2, 0, 1, 5, 0.5, -1])]);
    };
    rows.value = "2";
    rows.dispatchEvent(new Event("change"));
    await drawn();
    expect(model.last("tile").params).toMatchObject({ rows_dim: 2, columns_dim: 1, index: [] });
    expect([...panel.querySelectorAll('[data-test="axis-label"]')].map((label) => label.textContent)).toEqual(["The", "␣end"]);
    expect(find('[data-test="selection"]').closest("[hidden]")).not.toBeNull();
    key("ArrowDown");
    expect(find('[data-test="readout"]').textContent).toBe("feature 1 · token 0 The1");
  });

  it("states a percentile that the kernel found, and fixed ends", async () => {
    await open();
    const before = paints.at(-1)?.hash;
    const choose = (name: string, value: string): void => {
      const input = find(`[data-test="${name}"]`) as HTMLSelectElement;
      input.value = value;
      input.dispatchEvent(new Event("change"));
    };
    model.kernel = (request) => {
      model.ok(request, { ...TILE, reach: 0.5, sampled: true }, [bufferOf([-2, 0, 1, NaN, 0.5, -1])]);
    };
    choose("range", "99");
    await drawn();
    expect(model.last("tile").params["percentile"]).toBe(99);
    expect(find('[data-test="legend-range"]').textContent).toBe("99 % of magnitudes, of a sample");
    expect(find('[data-test="legend"]').textContent).toContain("≥ +0.5");
    const percentile = paints.at(-1)?.hash;
    expect(percentile).not.toBe(before);
    choose("range", "fixed");
    choose("range-low", "0");
    choose("range-high", "4");
    await drawn();
    expect(find('[data-test="legend"]').textContent).toContain("≤ 02+4");
    expect(find('[data-test="legend-range"]').textContent).toBe("fixed ends");
    choose("curve", "arcsinh");
    await drawn();
    expect(new Set([before, percentile, paints.at(-1)?.hash]).size).toBe(3);
  });

  it("shows the user's numbers beside the tokens", async () => {
    await open();
    const kernel = model.kernel;
    model.kernel = (request) => {
      if (request.method === "strips") {
        model.ok(request, { site: "model.layers.0.mlp", strips: [{ name: "<b>", values: [0.5, "nan"] }, { name: "long", values: [1, 2, 3] }] });
      } else kernel(request);
    };
    model.receive({ kind: "event", state: { ...STATE1, overlays: 1 } });
    await drawn();
    expect(panel.querySelectorAll('[data-test="strip"]').length).toBe(1);
    key("ArrowRight");
    expect(find('[data-test="readout"]').textContent).toBe("token 0 The · feature 0 · <b> 0.5−2");
    expect(panel.querySelector("b")).toBeNull();
  });

  it("steps through the calls of a module", async () => {
    await open();
    page.tree.setShapes(0, [], [1, 1, 1, 1, 3]);
    await page.select("model.layers.0.mlp@0");
    await drawn();
    const call = find('[data-test="call"]') as HTMLInputElement;
    expect(call.closest("[hidden]")).toBeNull();
    expect(call.value).toBe("0");
    call.value = "2";
    call.dispatchEvent(new Event("change"));
    await drawn();
    expect(model.last("select").params).toEqual({ site: "model.layers.0.mlp@2" });
    find('[data-test="side"] [data-value="input"]').click();
    expect(model.last("select").params).toEqual({ site: "model.layers.0.mlp:input@2" });
  });
});
