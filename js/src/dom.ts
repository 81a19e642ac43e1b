/** Elements and lifetimes. All text goes in as text nodes: nothing here reads markup. */

export type Child = Node | string | null | undefined | false;

/** An element with attributes and children. An attribute that is undefined is left out. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Record<string, string | undefined> = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined) element.setAttribute(name, value);
  }
  for (const child of children) {
    if (child) element.append(child);
  }
  return element;
}

/** Set the text only where it changes, so that selections and live regions are left alone. */
export function setText(element: Element, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}

export function setAttribute(element: Element, name: string, value: string | null): void {
  if (value === null) element.removeAttribute(name);
  else if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

export function show(element: HTMLElement, visible: boolean): void {
  if (element.hidden === visible) element.hidden = !visible;
}

let count = 0;

/** An element id that is unique in the page. */
export function uniqueId(stem: string): string {
  count += 1;
  return `lv-${stem}-${count}`;
}

/** Run `action` after `ms`, unless `signal` ends first. Returns a function that calls it off. */
export function later(signal: AbortSignal, ms: number, action: () => void): () => void {
  if (signal.aborted) return () => undefined;
  const stop = (): void => {
    clearTimeout(timer);
    signal.removeEventListener("abort", stop);
  };
  const timer = setTimeout(() => {
    stop();
    action();
  }, ms);
  signal.addEventListener("abort", stop);
  return stop;
}

/** A function that runs `action` once in the next animation frame, however often it is called. */
export function nextFrame(signal: AbortSignal, action: () => void): () => void {
  let asked = false;
  return () => {
    if (asked || signal.aborted) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      if (!signal.aborted) action();
    });
  };
}

/** Call `action` when `element` gets a new size that is not 0. Without ResizeObserver: once. */
export function onResize(signal: AbortSignal, element: Element, action: () => void): void {
  if (typeof ResizeObserver === "undefined") {
    action();
    return;
  }
  const observer = new ResizeObserver((entries) => {
    const box = entries[entries.length - 1]?.contentRect;
    if (box && box.width > 0 && box.height > 0) action();
  });
  observer.observe(element);
  signal.addEventListener("abort", () => {
    observer.disconnect();
  });
}
