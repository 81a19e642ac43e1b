/** Tells light from dark by what is painted, and says when the host's theme changes. */

export type Theme = "light" | "dark";

/** Relative luminance (0 to 1) of a computed `rgb(...)` colour, or null for anything else. */
export function luminance(color: string): number | null {
  const parts = /^rgba?\(\s*([\d.]+)[\s,]+([\d.]+)[\s,]+([\d.]+)/.exec(color);
  if (!parts) return null;
  const [red, green, blue] = parts.slice(1, 4).map((part) => {
    const share = Number(part) / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * (red ?? 0) + 0.7152 * (green ?? 0) + 0.0722 * (blue ?? 0);
}

export function themeOf(root: HTMLElement): Theme {
  const painted = luminance(getComputedStyle(root).backgroundColor);
  return painted !== null && painted < 0.25 ? "dark" : "light";
}

/** Call `action` after any change of the attributes by which hosts switch their theme. */
export function watchTheme(signal: AbortSignal, action: () => void): void {
  const options = { signal };
  if (typeof MutationObserver !== "undefined") {
    const observer = new MutationObserver(action);
    const watched = { attributes: true, attributeFilter: ["class", "style", "theme", "data-theme",
      "data-jp-theme-light", "data-jp-theme-name", "data-vscode-theme-kind"] };
    observer.observe(document.body, watched);
    observer.observe(document.documentElement, watched);
    signal.addEventListener("abort", () => {
      observer.disconnect();
    });
  }
  if (typeof matchMedia !== "undefined") {
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", action, options);
  }
  // A theme's style sheet may arrive after its attribute.
  document.head.addEventListener("load", action, { capture: true, signal });
}
