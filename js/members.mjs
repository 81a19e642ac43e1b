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
    const name = node.text;
    const meant = (symbol) => {
      const declaration = symbol?.valueDeclaration;
      return declaration && (isPrivate(declaration) || (isOurs(declaration) && !taken.has(name)));
    };
    let written = name;
    if (ts.isShorthandPropertyAssignment(node.parent)) {
      if (meant(checker.getShorthandAssignmentValueSymbol(node.parent))) written = `${name}: ${name}${MARK}`;
    } else if (isUnpacked(node)) {
      const whole = checker.getTypeAtLocation(node.parent.parent);
      if (meant(whole.getProperty(name))) written = `${name}${MARK}: ${name}`;
    } else if (meant(checker.getSymbolAtLocation(node))) written = name + MARK;
    text += file.text.slice(from, node.getStart(file)) + written;
    from = node.end;
  });
  return text + file.text.slice(from);
}

function each(node, look) {
  look(node);
  ts.forEachChild(node, (child) => { each(child, look); });
}

/** Whether this is the name in `const { name } = whole`. */
function isUnpacked(node) {
  const { parent } = node;
  return ts.isBindingElement(parent) && parent.name === node && !parent.propertyName
    && ts.isObjectBindingPattern(parent.parent);
}

/** Whether the text of `node` is here the name of a property that is no member of our classes. */
function isTaken(node, checker) {
  if (ts.isStringLiteralLike(node)) return ts.isElementAccessExpression(node.parent);
  if (!ts.isIdentifier(node)) return false;
  if (ts.isShorthandPropertyAssignment(node.parent)) return true;
  if (isUnpacked(node)) {
    const member = checker.getTypeAtLocation(node.parent.parent).getProperty(node.text);
    return !(member?.valueDeclaration && isOurs(member.valueDeclaration));
  }
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
