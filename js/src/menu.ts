/** Menus: a list of commands at a button or at a place, for mouse and keys. */

import { h } from "./dom";

export interface Command {
  text: string;
  /** The keys that do the same, to be shown. */
  keys?: string;
  test?: string;
  disabled?: boolean;
  act(): void;
}

/** A button that opens a menu of what `commands` gives at that moment. */
export function menuButton(
  text: string,
  title: string,
  test: string,
  signal: AbortSignal,
  commands: () => readonly Command[],
): HTMLButtonElement {
  const button = h("button", {
    type: "button", class: "lv-icon", title, "aria-label": title, "aria-haspopup": "menu", "data-test": test,
  }, text);
  button.addEventListener("click", () => { openMenu(button, title, commands(), signal); }, { signal });
  return button;
}

/** Open a menu under `anchor`, or at a point of the window; the focus goes back to `anchor`. */
export function openMenu(
  anchor: HTMLElement,
  title: string,
  commands: readonly Command[],
  signal: AbortSignal,
  at?: { x: number; y: number },
): void {
  const root = anchor.closest<HTMLElement>(".lensview") ?? document.body;
  for (const open of root.querySelectorAll(".lv-menu")) open.remove();
  const closing = new AbortController();
  signal.addEventListener("abort", () => { closing.abort(); }, { signal: closing.signal });
  const options = { signal: closing.signal };
  const menu = h("div", { class: "lv-menu", role: "menu", "aria-label": title, "data-test": "menu" });
  const close = (refocus: boolean): void => {
    menu.remove();
    closing.abort();
    if (refocus) anchor.focus();
  };
  const buttons = commands.map((command) => {
    const button = h("button", {
      type: "button", role: "menuitem", class: "lv-menu-item", tabindex: "-1", "data-test": command.test,
    }, h("span", {}, command.text), h("span", { class: "lv-keys" }, command.keys ?? ""));
    button.disabled = command.disabled ?? false;
    button.addEventListener("click", () => {
      close(true);
      command.act();
    }, options);
    return button;
  });
  menu.append(...buttons);
  menu.addEventListener("keydown", (event) => { key(event, buttons, close); }, options);
  document.addEventListener("pointerdown", ({ target }) => {
    if (!(target instanceof Node) || !menu.contains(target)) close(false);
  }, { ...options, capture: true });
  root.append(menu);
  place(menu, root, anchor, at);
  buttons.find((button) => !button.disabled)?.focus();
}

function key(event: KeyboardEvent, buttons: readonly HTMLButtonElement[], close: (refocus: boolean) => void): void {
  const usable = buttons.filter((button) => !button.disabled);
  const now = usable.findIndex((button) => button === document.activeElement);
  const to = { ArrowDown: now + 1, ArrowUp: now - 1, Home: 0, End: -1 }[event.key];
  if (to !== undefined) {
    event.preventDefault();
    usable.at(to % usable.length)?.focus();
  } else if (event.key === "Escape" || event.key === "Tab") {
    event.preventDefault();
    event.stopPropagation();
    close(true);
  }
}

/** Within the explorer, whose layout containment makes it the frame of what is placed in it. */
function place(menu: HTMLElement, root: HTMLElement, anchor: HTMLElement, at?: { x: number; y: number }): void {
  const frame = root.getBoundingClientRect();
  const box = anchor.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = menu;
  const left = (at?.x ?? box.right - width) - frame.left;
  const below = (at?.y ?? box.bottom + 2) - frame.top;
  const above = (at?.y ?? box.top - 2) - frame.top - height;
  const top = below + height > frame.height && above > 0 ? above : below;
  menu.style.left = `${Math.max(4, Math.min(left, frame.width - width - 4))}px`;
  menu.style.top = `${Math.max(4, top)}px`;
}
