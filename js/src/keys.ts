/**
 * Keeps what is typed in the explorer away from the notebook, whose single-letter shortcuts
 * delete cells.
 *
 * Stopping the events is not enough: JupyterLab and Notebook 7 listen in the capture phase. They
 * leave a key alone when the *focused element itself* carries `data-lm-suppress-shortcuts`.
 */

const MARK = "data-lm-suppress-shortcuts";

export function guardKeys(root: HTMLElement, signal: AbortSignal): void {
  for (const type of ["keydown", "keypress", "keyup"]) {
    root.addEventListener(
      type,
      (event) => {
        event.stopPropagation();
      },
      { signal },
    );
  }
  root.addEventListener(
    "focusin",
    ({ target }) => {
      if (target instanceof Element) target.setAttribute(MARK, "true");
    },
    { signal },
  );
  root.addEventListener(
    "focusout",
    ({ target }) => {
      if (target instanceof Element) target.removeAttribute(MARK);
    },
    { signal },
  );
}
