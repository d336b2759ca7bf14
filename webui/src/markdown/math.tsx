/** Formulas, by KaTeX, which is loaded with the first one. */
import type { VNode } from "preact";
import { useEffect, useRef } from "preact/hooks";

type Render = (text: string, element: HTMLElement, display: boolean) => void;

let renderer: Promise<Render> | undefined;

function load(): Promise<Render> {
  renderer ??= import("./katex").then((module) => module.render);
  return renderer;
}

export function MathText({ text, display, raw }: { text: string; display: boolean; raw: string }): VNode {
  const element = useRef<HTMLSpanElement>(null);
  useEffect(() => {
    let current = true;
    const target = element.current!;
    target.textContent = raw;
    void load().then((render) => {
      if (current) render(text, target, display);
    });
    return () => {
      current = false;
    };
  }, [text, display, raw]);
  return <span ref={element} class={display ? "math-display" : "math"} dir="ltr" />;
}
