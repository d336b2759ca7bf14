/** KaTeX with bounds: a formula may name nothing outside of itself, and not grow without end. */
import katex from "katex";
import "katex/dist/katex.min.css";

export function render(text: string, element: HTMLElement, displayMode: boolean): void {
  try {
    katex.render(text, element, {
      displayMode,
      throwOnError: true,
      trust: false,
      strict: "ignore",
      maxSize: 20,
      maxExpand: 200,
    });
  } catch {
    element.textContent = text; // no formula: as it was written
    element.classList.add("math-broken");
  }
}
