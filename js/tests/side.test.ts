import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import explorer from "../src/index";
import type { Page } from "../src/page";
import { Page as RealPage } from "../src/page";
import { Interventions } from "../src/interventions";
import type { InterventionRow, RunRow, State } from "../src/protocol";
import { FakeModel, HELLO, serve, settled, STATE } from "./fakemodel";

let model: FakeModel;
let host: HTMLElement;
let cleanup: () => void = () => undefined;

const RUN: RunRow = {
  number: 1, name: "", prompt: "<b>Hi</b>", interventions: [], time: "2026-01-01T10:00:00", seconds: 1, seed: 0,
  held: true, amber: 0,
};
const ROW: InterventionRow = {
  id: "a", enabled: true, site: "model", operation: "clamp", index: "", value: "-1, 2", locked: false,
  error: "", changed: 3,
};

async function open(state: Partial<State>): Promise<void> {
  serve(model, { ...HELLO, state: { ...STATE, run: 1, selected: "lm_head", ...state } });
  cleanup = explorer.render({ model, el: host });
  await settled();
  model.kernel = () => undefined;
}
function one(selector: string): HTMLElement {
  const found = host.querySelector<HTMLElement>(selector);
  if (!found) throw new Error(`nothing matches ${selector}`);
  return found;
}
const field = (selector: string): HTMLInputElement => one(selector) as HTMLInputElement;
const mark = (name: string): HTMLElement => one(`[data-test="${name}"]`);
const press = (element: HTMLElement, key: string, more: object = {}): void => {
  element.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true, ...more }));
};
const rows = (): InterventionRow[] => model.last("interventions").params["rows"] as InterventionRow[];

beforeEach(() => {
  vi.spyOn(HTMLCanvasElement.prototype, "getContext").mockReturnValue(null);
  localStorage.clear();
  model = new FakeModel();
  host = document.body.appendChild(document.createElement("div"));
});

afterEach(() => {
  cleanup();
  host.remove();
  vi.restoreAllMocks();
});

describe("the sections", () => {
  it("fold, and stay folded after a reload", async () => {
    await open({});
    expect(mark("interventions").dataset["open"]).toBe("true");
    expect(mark("timeline").dataset["open"]).toBe("false");
    mark("fold-timeline").click();
    mark("fold-interventions").click();
    cleanup();
    model = new FakeModel();
    await open({});
    expect(mark("timeline").dataset["open"]).toBe("true");
    expect(mark("fold-interventions").getAttribute("aria-expanded")).toBe("false");
  });

  it("say what is in them while they are folded", async () => {
    await open({ runs: [RUN], checks: [{ name: "mode", ok: false, reason: "train <i>mode</i>" }] });
    expect(mark("fold-timeline").textContent).toContain("Runs1");
    expect(mark("fold-trust").textContent).toContain("! 1 of 1");
    expect(mark("checks").textContent).toContain("train <i>mode</i>");
    expect(host.querySelector("i, .lv-runs b")).toBeNull();
  });
});

describe("values", () => {
  it("of a pair are two fields and one text", async () => {
    await open({ interventions: [ROW] });
    const high = field('[data-field="high"]');
    expect(field('[data-field="low"]').value).toBe("-1");
    high.value = "3";
    press(high, "Enter");
    expect(rows()[0]?.value).toBe("-1, 3");
  });

  it("of a patch are a choice of run", async () => {
    await open({ interventions: [{ ...ROW, operation: "patch", value: "run 9" }], runs: [RUN] });
    const choice = field('select[data-field="value"]');
    expect(choice.value).toBe("run 9");
    choice.value = "run 1";
    choice.dispatchEvent(new Event("change", { bubbles: true }));
    expect(rows()[0]?.value).toBe("run 1");
  });

  it("change with the arrows, and start anew with another operation", async () => {
    await open({ interventions: [{ ...ROW, operation: "scale", value: "0.5" }] });
    const value = field('[data-field="value"]');
    press(value, "ArrowUp");
    press(value, "ArrowUp", { shiftKey: true });
    expect(value.value).toBe("1.6");
    const operation = field('[data-field="operation"]');
    operation.value = "clamp";
    operation.dispatchEvent(new Event("change", { bubbles: true }));
    expect(rows()[0]).toMatchObject({ operation: "clamp", value: "-1, 1" });
  });
});

describe("keys", () => {
  it("undo and redo, but not the typing in a field", async () => {
    await open({ can_undo: true, can_redo: true, interventions: [ROW] });
    press(mark("tree"), "z", { ctrlKey: true });
    press(mark("tree"), "Z", { ctrlKey: true, shiftKey: true });
    expect(model.methods().slice(-2)).toEqual(["undo", "redo"]);
    const count = model.sent.length;
    press(mark("prompt"), "z", { ctrlKey: true });
    const low = field('[data-field="low"]');
    low.focus();
    low.value = "-5";
    low.dispatchEvent(new Event("input", { bubbles: true }));
    press(low, "z", { ctrlKey: true });
    expect(model.sent.length).toBe(count);
  });

  it("open the help, keep the focus in it, and give it back", async () => {
    await open({});
    mark("tree").focus();
    press(mark("tree"), "?");
    const dialog = mark("help-dialog");
    expect(dialog.getAttribute("aria-modal")).toBe("true");
    press(mark("close"), "Tab");
    expect(dialog.contains(document.activeElement)).toBe(true);
    press(mark("close"), "Escape");
    expect(host.querySelector('[data-test="help-dialog"]')).toBeNull();
    expect(document.activeElement).toBe(mark("tree"));
    press(mark("prompt"), "?");
    expect(host.querySelector('[data-test="help-dialog"]')).toBeNull();
  });

  it("add a row for the selected site, move and copy it", async () => {
    await open({ interventions: [ROW, { ...ROW, id: "b", site: "lm_head" }] });
    press(mark("tree"), "Enter", { altKey: true });
    expect(rows().at(-1)).toMatchObject({ site: "lm_head", operation: "scale" });
    const site = field('[data-field="site"]');
    press(site, "ArrowDown", { altKey: true });
    expect(rows().map(({ id }) => id).slice(0, 2)).toEqual(["b", "a"]);
    press(site, "d", { ctrlKey: true });
    expect(rows()).toHaveLength(4);
  });
});

describe("the tree's menu", () => {
  it("edits the module under the pointer", async () => {
    await open({});
    one('.lv-tree [data-site="model"]').dispatchEvent(new MouseEvent("contextmenu", { bubbles: true, cancelable: true }));
    press(mark("menu"), "ArrowDown");
    mark("edit-this").click();
    expect(host.querySelector('[data-test="menu"]')).toBeNull();
    expect(rows()[0]).toMatchObject({ site: "model" });
  });
});

describe("a part that was picked", () => {
  it("becomes a row, once", async () => {
    serve(model, { ...HELLO, state: { ...STATE, run: 1 } });
    const controller = new AbortController();
    const page: Page = new RealPage(model, controller.signal);
    host.append(new Interventions(page, controller.signal).element);
    await page.start();
    page.store.set({ picked: { site: "lm_head", index: "0, 1:3, :" } });
    await settled();
    expect(page.store.now.picked).toBeNull();
    expect(rows()).toHaveLength(1);
    expect(rows()[0]).toMatchObject({ site: "lm_head", index: "0, 1:3, :", enabled: true });
    controller.abort();
  });
});

describe("the timeline", () => {
  it("compares two runs by one request, and ends that", async () => {
    await open({ runs: [RUN, { ...RUN, number: 2, held: false }] });
    const pick = (number: number, side: string): void => {
      one(`[data-number="${number}"] [data-field="${side}"]`).click();
    };
    pick(1, "A");
    expect(model.methods()).not.toContain("pair");
    pick(2, "B");
    expect(model.last("pair").params).toEqual({ first: 1, second: 2 });
    model.ok(model.last("pair"), { ...STATE, run: 2, selected: "lm_head", runs: [RUN], pair: [1, 2] });
    await settled();
    expect(mark("fold-timeline").textContent).toContain("comparing 1 and 2");
    mark("end-pair").click();
    expect(model.last("pair").params).toEqual({ first: null, second: null });
  });

  it("names and restores a run, and says whose values were let go", async () => {
    await open({ runs: [{ ...RUN, held: false, interventions: ["zero x"] }] });
    const name = field('[data-test="kept-run"] [data-field="name"]');
    name.value = "first";
    press(name, "Enter");
    expect(model.last("rename").params).toEqual({ number: 1, name: "first" });
    one('[data-test="kept-run"] [data-field="restore"]').click();
    expect(model.last("restore").params).toEqual({ number: 1 });
    expect(one(".lv-run-what").textContent).toBe("zero x · values let go");
  });
});

describe("what takes long", () => {
  it("shows what runs and Cancel, and what came of it at its row", async () => {
    await open({ interventions: [ROW] });
    mark("row-menu").click();
    mark("row-effect").click();
    const request = model.last("effect");
    expect(request.params).toEqual({ id: "a" });
    expect(mark("cancel").hidden).toBe(false);
    model.receive({ kind: "progress", id: request.id, done: 1, total: 2, text: "layers.0" });
    expect(mark("status").textContent).toContain("layers.0 · 1 of 2");
    model.ok(request, { id: "a", text: "Alone <u>it</u> does", first: "model", moved: true });
    await settled();
    expect(one('[data-field="effect"]').textContent).toBe("Alone <u>it</u> does");
    expect(one('[data-field="visit"]').hidden).toBe(false);
    expect(mark("cancel").hidden).toBe(true);
  });

  it("asks before it overwrites a file", async () => {
    await open({});
    mark("main-menu").click();
    mark("save-trace").click();
    mark("save").click();
    expect(model.last("save").params).toEqual({ path: "run.safetensors", what: "trace", replace: false });
    model.ok(model.last("save"), { path: "run.safetensors", bytes: 5, exists: true });
    await settled();
    expect(mark("save-text").textContent).toContain("already");
    mark("overwrite").click();
    expect(model.last("save").params["replace"]).toBe(true);
    model.ok(model.last("save"), { path: "/x/run.safetensors", bytes: 5000, exists: false });
    await settled();
    expect(host.querySelector('[data-test="save-dialog"]')).toBeNull();
    expect(mark("status").textContent).toContain("5,000 bytes");
  });

  it("prices a run and sets its limits", async () => {
    await open({ limits: { sites: ["**"], keep: "", max_bytes: 2 ** 20, held_bytes: 0, held_limit: 2 ** 30 } });
    mark("cost").click();
    model.ok(model.last("estimate"), {
      sites: 3, bytes: 10, limit: 2 ** 20, largest: [], note: "",
      choices: [{ name: "all", sites: ["**"], keep: "", bytes: 10, note: "" },
        { name: "half", sites: ["**"], keep: "half", bytes: 5, note: "" }],
    });
    await settled();
    field('[data-keep="half"]').click();
    const limit = mark("limit") as HTMLInputElement;
    expect(limit.value).toBe("1");
    limit.value = "";
    mark("apply-limits").click();
    expect(model.last("limits").params).toEqual({ sites: ["**"], keep: "half", max_mib: null });
  });
});
