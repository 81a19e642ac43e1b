import { describe, expect, it } from "vitest";
import { matcher } from "../src/treesearch";

const PATHS = ["", "model", "model.layers", "model.layers.0", "model.layers.0.mlp", "model.layers.10.mlp",
  "model.layers.0.self_attn.q_proj", "lm_head", "a\\.b"];

const found = (query: string): string[] => PATHS.filter((path) => matcher(query)(path, "LlamaMLP".repeat(path === "model" ? 1 : 0)));

describe("matcher", () => {
  it.each<[string, string[]]>([
    ["layers.0.m", ["model.layers.0.mlp"]],
    ["LLAMAmlp", ["model"]],
    ["llama*", ["model"]],
    ["model.layers.*.mlp", ["model.layers.0.mlp", "model.layers.10.mlp"]],
    ["model.layers.?.mlp", ["model.layers.0.mlp"]],
    ["**.mlp", ["model.layers.0.mlp", "model.layers.10.mlp"]],
    ["**.q_proj:input", ["model.layers.0.self_attn.q_proj"]],
    ["lm_head@2", ["lm_head"]],
    ["model.layers.0.**", ["model.layers.0", "model.layers.0.mlp", "model.layers.0.self_attn.q_proj"]],
    ["*_head", ["lm_head"]],
    ["*.layers", ["model.layers"]],
    ["a\\.?", ["a\\.b"]],
    ["model.(", []],
  ])("%s", (query, paths) => {
    expect(found(query)).toEqual(paths);
  });
});
