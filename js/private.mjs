// Marks the private members of classes, so that the bundler can give them shorter names.
// TypeScript knows which names are private; esbuild only sees names, and the same name may be one
// that the DOM or a message knows.
import ts from "typescript";

export const MARK = "$";

/** The sources under `root` that are reached from `entry`, by path, private members marked. */
export function markPrivate(entry, options) {
  const program = ts.createProgram([entry], options);
  const checker = program.getTypeChecker();
  const marked = new Map();
  for (const file of program.getSourceFiles()) {
    if (file.isDeclarationFile) continue;
    const edits = [];
    const visit = (node) => {
      if (ts.isIdentifier(node) && isPrivate(node, checker)) {
        const name = node.text;
        const shorthand = ts.isShorthandPropertyAssignment(node.parent);
        edits.push([node.getStart(file), node.end, shorthand ? `${name}: ${name}${MARK}` : name + MARK]);
      }
      ts.forEachChild(node, visit);
    };
    visit(file);
    let { text } = file;
    for (const [start, end, name] of edits.reverse()) text = text.slice(0, start) + name + text.slice(end);
    marked.set(file.fileName, text);
  }
  return marked;
}

function isPrivate(node, checker) {
  const symbol = ts.isShorthandPropertyAssignment(node.parent)
    ? checker.getShorthandAssignmentValueSymbol(node.parent)
    : checker.getSymbolAtLocation(node);
  const declaration = symbol?.valueDeclaration;
  if (!declaration) return false;
  return (ts.getCombinedModifierFlags(declaration) & ts.ModifierFlags.Private) !== 0;
}
