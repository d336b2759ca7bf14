/** The blocks of a KV cache: used, shared, cached, free. */
import type { VNode } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { call } from "../api/client";
import { isAdmin } from "../api/server";
import { formatNumber, t } from "../text";
import { useLoad } from "../ui/load";

interface Blocks {
  models: { model: string; blocks: number; used: number; shared: number; cached: number; cells: string }[];
}

/** States of a cell, as the server writes them: the most of its blocks are so. */
const COLOURS: Record<string, string> = { u: "#1f77a4", s: "#a4571f", c: "#7fb6d3" };
const COLUMNS = 256;
const SIZE = 5;

export function BlockMap({ model }: { model: string }): VNode | null {
  const { data } = useLoad(() => (isAdmin.value ? call<Blocks>("admin/blocks") : Promise.resolve({ models: [] })), 2);
  const shown = data?.models.filter((one) => !model || one.model === model) ?? [];
  if (!shown.length) return null;
  return (
    <>
      {shown.map((one) => (
        <figure key={one.model} class="memory">
          <figcaption>{t("machine.map", one.model)}</figcaption>
          <Cells cells={one.cells} label={t("machine.map.counts", formatNumber(one.used), formatNumber(one.shared), formatNumber(one.cached), formatNumber(one.blocks))} />
          <ul class="legend">
            <li><span class="swatch used" aria-hidden="true" /> {t("machine.map.used")} <small>{formatNumber(one.used)}</small></li>
            <li><span class="swatch shared" aria-hidden="true" /> {t("machine.map.shared")} <small>{formatNumber(one.shared)}</small></li>
            <li><span class="swatch cached" aria-hidden="true" /> {t("machine.map.cached")} <small>{formatNumber(one.cached)}</small></li>
            <li><span class="swatch free" aria-hidden="true" /> {t("models.free")} <small>{formatNumber(one.blocks - one.used - one.cached)}</small></li>
          </ul>
        </figure>
      ))}
    </>
  );
}

function Cells({ cells, label }: { cells: string; label: string }): VNode {
  const canvas = useRef<HTMLCanvasElement>(null);
  const rows = Math.ceil(cells.length / COLUMNS);
  useEffect(() => {
    const context = canvas.current!.getContext("2d")!;
    context.clearRect(0, 0, COLUMNS * SIZE, rows * SIZE);
    for (let index = 0; index < cells.length; index++) {
      const colour = COLOURS[cells[index]!];
      if (!colour) continue;
      context.fillStyle = colour;
      context.fillRect((index % COLUMNS) * SIZE, Math.floor(index / COLUMNS) * SIZE, SIZE - 1, SIZE - 1);
    }
  }, [cells, rows]);
  return <canvas ref={canvas} class="blocks" width={COLUMNS * SIZE} height={rows * SIZE} role="img" aria-label={label} />;
}
