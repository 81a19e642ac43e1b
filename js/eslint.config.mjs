import js from "@eslint/js";
import tseslint from "typescript-eslint";

export default tseslint.config(
  { ignores: ["node_modules/"] },
  {
    files: ["**/*.ts"],
    extends: [
      js.configs.recommended,
      ...tseslint.configs.strictTypeChecked,
      ...tseslint.configs.stylisticTypeChecked,
    ],
    languageOptions: { parserOptions: { projectService: true } },
    rules: {
      // Numbers are what most of our template texts hold.
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
      "max-lines": ["error", 400],
      "no-restricted-properties": [
        "error",
        { property: "innerHTML", message: "Names and tokens are text: use textContent." },
        { property: "outerHTML", message: "Names and tokens are text: use textContent." },
        { property: "insertAdjacentHTML", message: "Names and tokens are text: use append." },
      ],
      "no-restricted-globals": [
        "error",
        { name: "fetch", message: "The page talks to the kernel only." },
        { name: "XMLHttpRequest", message: "The page talks to the kernel only." },
      ],
    },
  },
);
