/** Site texts, as far as the page needs them: which module, and which side of it. */

export type Side = "input" | "output";

export interface SiteParts {
  /** The module's path, as in the tree ("" is the root). */
  path: string;
  side: Side;
  /** Which call of the module; null where the text names none. */
  call: number | null;
  /** Whether the text is exactly a module's side, or a call of it: no op, no leaf. */
  plain: boolean;
}

/** Where the path ends: at the first reserved character without a backslash before it. */
function pathEnd(site: string): number {
  for (let at = 0; at < site.length; at += 1) {
    const character = site.charAt(at);
    if (character === "\\") at += 1;
    else if (character === "/" || character === ":" || character === "[" || character === "@") {
      return at;
    }
  }
  return site.length;
}

export function parseSite(site: string): SiteParts {
  const end = pathEnd(site);
  const rest = site.slice(end);
  return {
    path: site.slice(0, end),
    side: rest.startsWith(":input") || /^\/.*:input/.test(rest) ? "input" : "output",
    call: /@\d+$/.test(rest) ? Number(rest.slice(rest.lastIndexOf("@") + 1)) : null,
    plain: /^(:output|:input)?(@\d+)?$/.test(rest),
  };
}

/** The canonical text of one side of a module, or of one call of it. */
export function siteOf(path: string, side: Side, call: number | null = null): string {
  const at = call === null ? "" : `@${call}`;
  if (side === "input") return `${path}:input${at}`;
  return (path === "" ? ":output" : path) + at;
}
