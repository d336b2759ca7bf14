/** A line chart of the latest points, by uPlot. */
import type { VNode } from "preact";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { language } from "../text";
import "uplot/dist/uPlot.min.css";

export interface Line {
  label: string;
  values: (number | null)[];
}

interface Props {
  title: string;
  times: number[];
  lines: Line[];
  /** The least that the axis goes up to. */
  least?: number;
}

const HEIGHT = 150;
const COLOURS = ["--accent", "--bad", "--good", "--faint"];

export function Chart({ title, times, lines, least = 1 }: Props): VNode {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const names = lines.map((line) => line.label).join("\n");
  useEffect(() => {
    const element = box.current!;
    const style = getComputedStyle(element);
    const colour = (name: string) => style.getPropertyValue("color") && cssColour(element, name);
    const axis = { stroke: () => colour("--faint"), grid: { stroke: () => colour("--line"), width: 1 }, ticks: { show: false }, size: 44 };
    const made = new uPlot(
      {
        width: element.clientWidth,
        height: HEIGHT,
        legend: { show: false },
        cursor: { show: false },
        scales: { y: { range: (_plot, _min, max) => [0, Math.max(least, (max ?? 0) * 1.1)] } },
        axes: [{ ...axis, size: 24, space: 90, values: (_plot, at) => at.map(clock) }, axis],
        series: [{}, ...lines.map((line, index) => ({ label: line.label, stroke: () => colour(COLOURS[index % COLOURS.length]!), width: 2, spanGaps: false, points: { show: false } }))],
      },
      [times, ...lines.map((line) => line.values)],
      element,
    );
    plot.current = made;
    const observer = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: HEIGHT }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
    };
  }, [names]);
  useEffect(() => plot.current?.setData([times, ...lines.map((line) => line.values)]), [times]);
  const latest = lines.map((line) => `${line.label}: ${line.values.at(-1)?.toFixed(1) ?? "–"}`).join(", ");
  return (
    <figure class="chart">
      <figcaption>
        {title}
        <ul class="legend">
          {lines.map((line, index) => <li key={line.label}><span class={`swatch line-${index % COLOURS.length}`} aria-hidden="true" /> {line.label}</li>)}
        </ul>
      </figcaption>
      <div ref={box} role="img" aria-label={`${title}: ${latest}`} />
    </figure>
  );
}

function clock(seconds: number): string {
  return new Date(seconds * 1000).toLocaleTimeString(language.value, { hour12: false });
}

/** A colour of the style sheet as a canvas takes it. */
function cssColour(element: HTMLElement, name: string): string {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  element.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
