/** Asks for the numbers behind the tree's bars, page by page. */

import { toNumber } from "./format";
import type { Page } from "./page";

const ROWS = 20_000;

/**
 * Load the sizes of the latest run's outputs. A later call takes over from this one. It is no work
 * that the page waits for: what is looked at goes first.
 */
export async function loadSizes(page: Page): Promise<void> {
  const { tree, store } = page;
  const { run, overlays } = store.now.kernel;
  if (tree.length === 0) return;
  let offset = 0;
  while (offset < tree.length) {
    const { result } = await page.client.call(
      "sizes", { offset, limit: ROWS }, { key: "sizes" }).answer;
    if (result.rms.length === 0) break;
    tree.bars.set(offset, {
      rms: result.rms.map(toNumber),
      odd: result.odd,
      changes: result.changes.map(toNumber),
      name: result.overlay_name,
      overlay: result.overlay.map(toNumber),
    });
    offset += result.rms.length;
    store.set({ sizesOf: `${run} ${overlays} ${offset}` });
  }
}
