import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import explorer from "../src/index";
import type { State, TreeRow } from "../src/protocol";
import { FakeModel, HELLO, ROWS, serve, settled, STATE } from "./fakemodel";

let model: FakeModel;
let host: HTMLElement;
let cleanup: () => void = () => undefined;

const RUN: State = {
  ...STATE, run: 1, prompt: "Hi", selected: "model.layers.0.mlp", tokens: ["The", "␣end"],
  baseline: [{ id: 1, text: " Paris", probability: 0.7 }],
};

function open(): void {
  cleanup = explorer.render({ model, el: host });
}

function one(selector: string): HTMLElement {
  const found = host.querySelector<HTMLElement>(selector);
  if (!found) throw new Error(`nothing matches ${selector}`);
  return found;
}
const test = (name: string): HTMLElement => one(`[data-test="${name}"]`);
const root = (): HTMLElement => one(".lensview");
const prompt = (): HTMLTextAreaElement => test("prompt") as HTMLTextAreaElement;
const press = (element: HTMLElement, key: string, more: object = {}): void => {
  element.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true, ...more }));
};

beforeEach(() => {
  // jsdom has no canvas, and says so on every call.
  vi.spyOn(HTMLCanvasElement.prototype, "getContext").mockReturnValue(null);
  model = new FakeModel();
  host = document.body.appendChild(document.createElement("div"));
});

afterEach(() => {
  cleanup();
  host.remove();
  vi.restoreAllMocks();
});

describe("opening", () => {
  it("asks for the state and the tree, and shows the tree before any run", async () => {
    serve(model);
    open();
    expect(root().dataset["state"]).toBe("loading");
    await settled();
    expect(model.methods()).toEqual(["hello", "tree"]);
    expect(root().dataset["state"]).toBe("ready");
    expect(test("title").textContent).toBe("Tiny");
    expect(host.querySelectorAll(".lv-tree-body [data-site]:not([hidden])").length).toBe(ROWS.length);
    expect(test("tree").getAttribute("aria-rowcount")).toBe(String(ROWS.length + 1));
  });

  it("shows what a kernel says that cannot answer, and works on the second try", async () => {
    model.kernel = (request) => {
      model.receive({ kind: "error", id: request.id, type: "RuntimeError", message: "closed <b>" });
    };
    open();
    await settled();
    expect(root().dataset["state"]).toBe("error");
    expect(test("status").textContent).toBe("RuntimeError: closed <b>");
    expect(test("status").getAttribute("role")).toBe("alert");
    serve(model);
    test("retry").click();
    await settled();
    expect(root().dataset["state"]).toBe("ready");
    expect(test("status").getAttribute("role")).toBe("status");
  });

  it("refuses another version of the messages", async () => {
    serve(model, { ...HELLO, version: 2 });
    open();
    await settled();
    expect(root().dataset["state"]).toBe("error");
    expect(test("status").textContent).toContain("Restart the kernel");
  });

  it("offers no prompt to a model that takes no text", async () => {
    serve(model, { ...HELLO, takes_text: false });
    open();
    await settled();
    expect(test("run").closest("[hidden]")).not.toBeNull();
    expect(test("no-prompt").hidden).toBe(false);
  });

  it("pulls a long tree in pages", async () => {
    const rows: TreeRow[] = [["", 0, 0, 0, "", "", 0]];
    for (let i = 0; i < 4500; i += 1) rows.push([String(i), 1, 0, 0, "", "", 0]);
    serve(model, HELLO, rows);
    model.kernel = ((answer) => (request): void => {
      if (request.method !== "tree") {
        answer(request);
        return;
      }
      const offset = Number(request.params["offset"]);
      const limit = Number(request.params["limit"]);
      model.ok(request, { total: rows.length, offset, classes: ["M"], places: ["float32 cpu"], rows: rows.slice(offset, offset + limit) });
    })(model.kernel);
    open();
    await settled();
    expect(model.methods().filter((method) => method === "tree").length).toBe(3);
    expect(test("tree").getAttribute("aria-rowcount")).toBe("3");
    one("[data-fold]").click();
    expect(test("tree").getAttribute("aria-rowcount")).toBe("4503");
    expect(host.querySelectorAll(".lv-tree-body .lv-tree-row").length).toBeLessThan(60);
  });
});

describe("names and tokens", () => {
  it("are text, never markup", async () => {
    const evil = '<img src="x" onerror="window.hit=1">';
    serve(model, { ...HELLO, title: evil, summary: evil, state: {
      ...RUN, selected: evil, notes: [evil], tokens: [evil], prompt: evil,
      baseline: [{ id: 1, text: evil, probability: 0.5 }],
      interventions: [{ id: "a", enabled: true, site: evil, operation: "scale", index: evil, value: evil,
        locked: false, error: evil, changed: null }],
    } }, [["", 0, 0, 0, evil, evil, 0], [evil, 1, 0, 0, evil, evil, 0]]);
    open();
    await settled();
    const search = test("search") as HTMLInputElement;
    search.value = "<img";
    search.dispatchEvent(new Event("input", { bubbles: true }));
    expect(host.querySelector("img")).toBeNull();
    const names = [...host.querySelectorAll<HTMLElement>("[data-site] .lv-name")];
    expect(names.map((name) => name.textContent)).toContain(evil);
    expect(host.querySelector(".lv-name mark")?.textContent).toBe("<img");
    expect(test("title").textContent).toBe(evil);
    expect(one("[data-token]").textContent).toContain(evil);
  });
});

describe("selecting", () => {
  it("asks the kernel and never sets a trait itself", async () => {
    serve(model);
    open();
    await settled();
    one('[data-site="lm_head"]').click();
    expect(root().dataset["selected"]).toBe("lm_head");
    expect(root().dataset["state"]).toBe("busy");
    await settled();
    expect(model.last("select").params).toEqual({ site: "lm_head" });
    expect(one('[data-site="lm_head"]').getAttribute("aria-selected")).toBe("true");
    expect(model.order.filter((step) => step.startsWith("set:") || step === "save")).toEqual([]);
  });

  it("keeps a click while an older selection is still being told", async () => {
    serve(model);
    open();
    await settled();
    model.kernel = () => undefined;
    one('[data-site="lm_head"]').click();
    model.sync("selected", "model");
    model.receive({ kind: "event", state: { ...STATE, selected: "model" } });
    expect(root().dataset["selected"]).toBe("lm_head");
    model.ok(model.last("select"), { site: "lm_head" });
    await settled();
    expect(root().dataset["selected"]).toBe("lm_head");
  });

  it("follows a selection from code, and opens the tree there", async () => {
    serve(model);
    open();
    await settled();
    one('[title="Collapse all"]').click();
    model.set("selected", "model.layers.1.mlp:input");
    await settled();
    expect(root().dataset["selected"]).toBe("model.layers.1.mlp:input");
    expect(one('[data-site="model.layers.1.mlp"]').getAttribute("aria-selected")).toBe("true");
    expect(model.methods()).not.toContain("select");
  });

  it("goes back, and says why, when the kernel refuses", async () => {
    serve(model);
    open();
    await settled();
    model.kernel = (request) => {
      model.receive({ kind: "error", id: request.id, type: "SiteError", message: "gone" });
    };
    one('[data-site="lm_head"]').click();
    await settled();
    expect(root().dataset["selected"]).toBe("");
    expect(test("status").textContent).toBe("SiteError: gone");
  });

  it("works by keys, with the active row named", async () => {
    serve(model);
    open();
    await settled();
    const tree = test("tree");
    for (const key of ["Home", "ArrowDown", "ArrowDown", "Enter"]) press(tree, key);
    await settled();
    expect(root().dataset["selected"]).toBe("model.layers");
    const active = document.getElementById(tree.getAttribute("aria-activedescendant") ?? "");
    expect(active?.dataset["site"]).toBe("model.layers");
    press(tree, "ArrowLeft");
    expect(active?.getAttribute("aria-expanded")).toBe("false");
  });
});

describe("running", () => {
  it("runs by Enter, shows progress, and takes the state", async () => {
    serve(model);
    open();
    await settled();
    model.kernel = () => undefined;
    prompt().value = "Hello";
    press(prompt(), "Enter", { shiftKey: true });
    expect(model.methods()).not.toContain("run");
    press(prompt(), "Enter");
    expect(model.last("run").params).toEqual({ prompt: "Hello" });
    expect(test("cancel").hidden).toBe(false);
    model.receive({ kind: "progress", id: model.last("run").id, done: 3, total: 12, text: "layer 3" });
    expect(test("status").textContent).toBe("layer 3 · 3 of 12");
    expect(one("[role=progressbar]").getAttribute("aria-valuenow")).toBe("3");
    model.ok(model.last("run"), { ...RUN, prompt: "Hello" });
    await settled();
    expect(root().dataset["run"]).toBe("1");
    expect(test("cancel").hidden).toBe(true);
    const row = one("[data-token]");
    expect([row.dataset["token"], row.dataset["baseline"], row.dataset["edited"]]).toEqual([" Paris", "0.7", ""]);
    expect(row.textContent).toContain("␣Paris");
    expect(model.last("outputs").params).toEqual({ offset: 0, limit: 2000 });
  });

  it("cancels, and says so", async () => {
    serve(model);
    open();
    await settled();
    model.kernel = () => undefined;
    test("run").click();
    test("cancel").click();
    expect(model.last("cancel").params).toEqual({ id: model.last("run").id });
    model.receive({ kind: "cancelled", id: model.last("run").id, reason: "you asked for it" });
    await settled();
    expect(test("status").textContent).toBe("Cancelled: you asked for it.");
    expect(test("run").hidden).toBe(false);
  });

  it("shows a failure in place and runs again", async () => {
    const served = serve(model);
    open();
    await settled();
    const answer = model.kernel;
    model.kernel = (request) => {
      model.receive({ kind: "error", id: request.id, type: "InputError", message: "the prompt is empty" });
    };
    test("run").click();
    await settled();
    expect(root().dataset["state"]).toBe("error");
    expect(test("status").textContent).toBe("InputError: the prompt is empty");
    model.kernel = answer;
    test("run").click();
    await settled();
    expect(root().dataset["state"]).toBe("ready");
    expect(root().dataset["run"]).toBe(String(served.state.run));
  });

  it("ignores a state that is older than what it shows", async () => {
    serve(model, { ...HELLO, state: { ...RUN, run: 5 } });
    open();
    await settled();
    model.receive({ kind: "event", state: { ...RUN, run: 4, prompt: "old" } });
    expect(root().dataset["run"]).toBe("5");
    model.receive({ kind: "event", state: { ...RUN, run: 6, prompt: "new" } });
    expect(root().dataset["run"]).toBe("6");
    expect(prompt().value).toBe("new");
  });

  it("does not touch a prompt that is being typed", async () => {
    serve(model);
    open();
    await settled();
    prompt().focus();
    prompt().value = "half a sen";
    model.receive({ kind: "event", state: { ...RUN, prompt: "from code" } });
    expect(prompt().value).toBe("half a sen");
  });
});

describe("the host", () => {
  it("hears no key of ours, and is told to leave the focused element alone", async () => {
    serve(model);
    open();
    await settled();
    const heard = vi.fn();
    host.addEventListener("keydown", heard);
    test("tree").focus();
    press(test("tree"), "d");
    expect(heard).not.toHaveBeenCalled();
    expect(test("tree").hasAttribute("data-lm-suppress-shortcuts")).toBe(true);
    prompt().focus();
    expect(test("tree").hasAttribute("data-lm-suppress-shortcuts")).toBe(false);
    expect(prompt().hasAttribute("data-lm-suppress-shortcuts")).toBe(true);
  });

  it("gets everything back when the view is closed", async () => {
    serve(model);
    open();
    await settled();
    const sent = model.sent.length;
    cleanup();
    expect(host.childElementCount).toBe(0);
    expect(model.listeners()).toBe(0);
    model.receive({ kind: "event", state: RUN });
    await settled();
    expect(model.sent.length).toBe(sent);
  });

  it("may show two views of one model, each with its own name", async () => {
    serve(model);
    open();
    const second = document.body.appendChild(document.createElement("div"));
    const close = explorer.render({ model, el: second });
    await settled();
    expect(new Set(model.sent.map(({ view }) => view)).size).toBe(2);
    expect(second.querySelector(".lensview")?.getAttribute("data-state")).toBe("ready");
    close();
    second.remove();
  });
});

describe("shapes", () => {
  it("come in pages of whatever length, and are those of the latest run", async () => {
    serve(model, { ...HELLO, state: RUN });
    const answer = model.kernel;
    model.kernel = (request) => {
      if (request.method !== "outputs") {
        answer(request);
        return;
      }
      const offset = Number(request.params["offset"]);
      model.ok(request, { run: 1, offset, shapes: [`row ${offset}`], rows: [0, -1, 0].slice(0, ROWS.length - offset) });
    };
    open();
    await settled();
    await settled();
    const asked = model.sent.filter(({ method }) => method === "outputs").map(({ params }) => params["offset"]);
    expect(asked).toEqual([0, 3, 6]);
    expect(one('[data-site="model.layers.0"] .lv-cell-shape').textContent).toBe("row 3");
    expect(one('[data-site="lm_head"] .lv-cell-shape').textContent).toBe("–");
  });
});
