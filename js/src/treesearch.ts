/** What a text in the tree's search box finds: parts of paths and classes, or globs as in sites. */

import { parseSite } from "./sites";

export type Match = (path: string, className: string) => boolean;

/** Whether a path or a class is found. Case is ignored; a site's side, leaf and call are left off. */
export function matcher(query: string): Match {
  const { path } = parseSite(query);
  const wanted = (path === "" ? query : path).toLowerCase();
  if (!isGlob(wanted)) {
    return (text, kind) => text.toLowerCase().includes(wanted) || kind.toLowerCase().includes(wanted);
  }
  const glob = globPattern(wanted);
  return (text, kind) => glob.test(text.toLowerCase()) || glob.test(kind.toLowerCase());
}

export function isGlob(text: string): boolean {
  return /(^|[^\\])[*?]/.test(text);
}

/** As `glob_pattern` of lensview/sites.py: `*` and `?` stay within a name, `**` crosses dots. */
export function globPattern(path: string): RegExp {
  const segments = path.match(/(?:\\.|[^\\.])+/g) ?? [];
  let out = "";
  segments.forEach((segment, i) => {
    const last = i === segments.length - 1;
    if (segment === "**") {
      out += last ? ".*" : "(?:(?:\\\\.|[^\\\\])+\\.)?";
      return;
    }
    out += segmentPattern(segment);
    if (!last) out += i === segments.length - 2 && segments[i + 1] === "**" ? "(?:\\.|$)" : "\\.";
  });
  return new RegExp(`^(?:${out})$`);
}

const ONE = "(?:\\\\.|[^\\\\.])";

function segmentPattern(segment: string): string {
  if (/^\*+$/.test(segment)) return `${ONE}+`;
  const pieces = segment.match(/\\.|\*+|\?|[^\\*?]+/g) ?? [];
  return pieces
    .map((piece) =>
      piece.startsWith("*") ? `${ONE}*`
        : piece === "?" ? ONE
          : piece.replace(/[.+?^${}()|[\]\\]/g, "\\$&"))
    .join("");
}
