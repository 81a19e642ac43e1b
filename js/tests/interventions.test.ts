import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { withChange, withNew } from "../src/editrows";
import { Interventions } from "../src/interventions";
import { Page } from "../src/page";
import type { InterventionRow, State } from "../src/protocol";
import { FakeModel, HELLO, serve, settled, STATE } from "./fakemodel";

const ROW: InterventionRow = {
  id: "a", enabled: true, site: "model", operation: "scale", index: "", value: "0", locked: false,
  error: "", changed: 12,
};

let model: FakeModel;
let controller: AbortController;
let panel: HTMLElement;

async function open(state: Partial<State>): Promise<void> {
  serve(model, { ...HELLO, state: { ...STATE, run: 1, selected: "lm_head", ...state } });
  const page = new Page(model, controller.signal);
  panel = document.body.appendChild(new Interventions(page, controller.signal).element);
  await page.start();
  await settled();
  model.kernel = () => undefined;
}

/** A field of a row: an input, or whatever else bears the name. */
function field(name: string, row = 0): HTMLInputElement {
  const rows = panel.querySelectorAll('[data-test="intervention"]');
  const found = rows[row]?.querySelector<HTMLInputElement>(`[data-field="${name}"]`);
  if (!found) throw new Error(`no ${name} in row ${row}`);
  return found;
}
const type = (input: HTMLInputElement, value: string, key = "Enter"): void => {
  input.focus();
  input.value = value;
  input.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
};
const sentRows = (): InterventionRow[] => model.last("interventions").params["rows"] as InterventionRow[];
const edits = (): number => model.methods().filter((method) => method === "interventions").length;

beforeEach(() => {
  model = new FakeModel();
  controller = new AbortController();
});

afterEach(() => {
  controller.abort();
  document.body.replaceChildren();
});

describe("rows as data", () => {
  it("change one at a time, and forget what the last run said of it", () => {
    const rows = [ROW, { ...ROW, id: "b" }];
    expect(withChange(rows, "b", { value: "2" })).toEqual([ROW, { ...ROW, id: "b", value: "2", changed: null }]);
    expect(rows[1]?.value).toBe("0");
  });

  it("get new ones with an id of their own", () => {
    const one = withNew([], "x", HELLO.operations);
    const two = withNew(one.slice(), "y", HELLO.operations);
    const three = withNew(two.slice(1), "z", HELLO.operations);
    expect(one[0]).toMatchObject({ site: "x", operation: "scale", value: "0", index: "", enabled: true });
    expect(new Set(three.map(({ id }) => id)).size).toBe(2);
  });
});

describe("the table", () => {
  it("adds the selected site, shows it at once, then what the kernel says", async () => {
    await open({});
    panel.querySelector<HTMLElement>('[data-test="add-intervention"]')?.click();
    expect(sentRows()).toHaveLength(1);
    expect(sentRows()[0]).toMatchObject({ site: "lm_head", operation: "scale", value: "0" });
    expect(model.last("interventions").key).toBe("interventions");
    expect(panel.dataset["pending"]).toBe("true");
    expect(field("site").value).toBe("lm_head");
    model.ok(model.last("interventions"), { ...STATE, run: 2, interventions: [{ ...ROW, site: "lm_head", changed: 2880 }] });
    await settled();
    expect(panel.dataset["pending"]).toBe("false");
    expect(field("changed").textContent).toBe("Δ 2,880");
  });

  it("commits a text on Enter or when it is left, once, and not when nothing changed", async () => {
    await open({ interventions: [ROW] });
    type(field("value"), "0.5");
    expect(sentRows()[0]?.value).toBe("0.5");
    field("value").dispatchEvent(new Event("blur"));
    expect(edits()).toBe(1);
    field("index").focus();
    field("index").value = " :, 1:3 ";
    field("index").dispatchEvent(new Event("blur"));
    expect(sentRows()[0]).toMatchObject({ value: "0.5", index: ":, 1:3" });
    expect(edits()).toBe(2);
  });

  it("sends a row that is switched off, changed in operation, or removed", async () => {
    await open({ interventions: [ROW, { ...ROW, id: "b" }] });
    field("enabled").click();
    expect(sentRows()[0]?.enabled).toBe(false);
    const operation = field("operation", 1);
    operation.value = "zero";
    operation.dispatchEvent(new Event("change"));
    expect(sentRows().map((row) => row.operation)).toEqual(["scale", "zero"]);
    field("remove").click();
    expect(sentRows().map((row) => row.id)).toEqual(["b"]);
  });

  it("keeps what is being typed while the kernel's rows arrive", async () => {
    await open({ interventions: [ROW] });
    field("value").focus();
    field("value").value = "0.2";
    model.receive({ kind: "event", state: { ...STATE, run: 2, interventions: [{ ...ROW, index: "0", value: "9" }] } });
    expect(field("value").value).toBe("0.2");
    expect(field("index").value).toBe("0");
  });

  it("takes an edit back with Escape", async () => {
    await open({ interventions: [ROW] });
    type(field("value"), "7", "Escape");
    expect(field("value").value).toBe("0");
    expect(edits()).toBe(0);
  });

  it("locks what has no text form", async () => {
    await open({ interventions: [{ ...ROW, operation: "patch", locked: true, value: "tensor" }] });
    expect(field("operation").disabled).toBe(true);
    expect(field("value").readOnly).toBe(true);
    expect(field("site").readOnly).toBe(false);
    expect(field("operation").value).toBe("patch");
  });

  it("shows a row's error as text at the row", async () => {
    await open({ interventions: [{ ...ROW, error: "no module <i>x</i>" }] });
    expect(field("error").textContent).toBe("no module <i>x</i>");
    expect(panel.querySelector("i")).toBeNull();
    expect(field("error").getAttribute("role")).toBe("alert");
  });

  it("goes back to the kernel's rows when it refuses the edit", async () => {
    await open({ interventions: [ROW] });
    type(field("value"), "x");
    field("value").blur();
    model.receive({ kind: "error", id: model.last("interventions").id, type: "InterventionError", message: "no" });
    await settled();
    expect(field("value").value).toBe("0");
    expect(panel.dataset["pending"]).toBe("false");
  });

  it("follows the last of several quick edits", async () => {
    await open({ interventions: [ROW] });
    for (const value of ["1", "2", "3"]) type(field("value"), value);
    const requests = model.sent.filter(({ method }) => method === "interventions");
    expect(requests).toHaveLength(3);
    model.receive({ kind: "cancelled", id: requests[0]?.id, reason: "superseded" });
    model.ok(requests[1] ?? model.last("interventions"), { ...STATE, run: 2, interventions: [{ ...ROW, value: "2" }] });
    await settled();
    expect(field("value").value).toBe("3");
    expect(panel.dataset["pending"]).toBe("true");
  });
});
