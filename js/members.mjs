// Marks members of our classes, so that the bundler can give them shorter names.
// TypeScript knows whose a name is; esbuild sees only the name, and the DOM or a message may have
// the same. Marked are private members, and others whose name means a member of a class of ours
// wherever it stands as a property.
import ts from "typescript";

export const MARK = "$";
const PROPERTY = ts.SymbolFlags.Property | ts.SymbolFlags.Method | ts.SymbolFlags.Accessor;

/** The sources that are reached from `entry`, by path, with members marked. */
export function markMembers(entry, options) {
  const program = ts.createProgram([entry], options);
  const checker = program.getTypeChecker();
  const files = program.getSourceFiles().filter((file) => !file.isDeclarationFile);
  const taken = new Set();
  for (const file of files) each(file, (node) => { if (isTaken(node, checker)) taken.add(node.text); });
  return new Map(files.map((file) => [file.fileName, marked(file, checker, taken)]));
}

function marked(file, checker, taken) {
  let text = "";
  let from = 0;
  each(file, (node) => {
    if (!ts.isIdentifier(node)) return;
    const declaration = symbolOf(node, checker)?.valueDeclaration;
    if (!declaration || !(isPrivate(declaration) || (isOurs(declaration) && !taken.has(node.text)))) return;
    const shorthand = ts.isShorthandPropertyAssignment(node.parent) ? `${node.text}: ` : "";
    text += file.text.slice(from, node.getStart(file)) + shorthand + node.text + MARK;
    from = node.end;
  });
  return text + file.text.slice(from);
}

function each(node, look) {
  look(node);
  ts.forEachChild(node, (child) => { each(child, look); });
}

function symbolOf(node, checker) {
  return ts.isShorthandPropertyAssignment(node.parent)
    ? checker.getShorthandAssignmentValueSymbol(node.parent)
    : checker.getSymbolAtLocation(node);
}

/** Whether the text of `node` is here the name of a property that is no member of our classes. */
function isTaken(node, checker) {
  if (ts.isStringLiteralLike(node)) return ts.isElementAccessExpression(node.parent);
  if (!ts.isIdentifier(node)) return false;
  if (ts.isShorthandPropertyAssignment(node.parent)) return true;
  if (ts.isBindingElement(node.parent) && ts.isObjectBindingPattern(node.parent.parent)) return true;
  const symbol = checker.getSymbolAtLocation(node);
  if (!symbol) return true;
  return (symbol.flags & PROPERTY) !== 0 && !(symbol.valueDeclaration && isOurs(symbol.valueDeclaration));
}

function isPrivate(declaration) {
  return (ts.getCombinedModifierFlags(declaration) & ts.ModifierFlags.Private) !== 0;
}

/** Whether this declares a member of a class in our sources that no interface asks for. */
function isOurs(declaration) {
  if (declaration.getSourceFile().isDeclarationFile) return false;
  const holder = ts.isParameterPropertyDeclaration(declaration, declaration.parent)
    ? declaration.parent.parent : declaration.parent;
  return ts.isClassDeclaration(holder) && !holder.heritageClauses;
}
