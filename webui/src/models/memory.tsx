/** What each model and its cache take of the memory, as a bar. */
import type { VNode } from "preact";
import { formatBytes, t } from "../text";
import type { HostedModels } from "./view";

interface Part {
  name: string;
  bytes: number;
  kind: string;
}

export function MemoryMap({ models }: { models: HostedModels }): VNode | null {
  const parts = models.models.flatMap(partsOf);
  const used = parts.reduce((sum, part) => sum + part.bytes, 0);
  const total = Math.max(models.memory_budget ?? 0, used);
  if (!total) return null;
  if (models.memory_budget) parts.push({ name: t("models.free"), bytes: total - used, kind: "free" });
  return (
    <figure class="memory">
      <figcaption>
        {models.memory_budget
          ? t("models.memory.of", formatBytes(models.memory_held ?? used), formatBytes(models.memory_budget))
          : t("models.memory.held", formatBytes(models.memory_held ?? used))}
      </figcaption>
      <svg class="stack" viewBox="0 0 1000 40" preserveAspectRatio="none" role="img" aria-label={parts.map((part) => `${part.name} ${formatBytes(part.bytes)}`).join(", ")}>
        {placed(parts, total).map(({ part, x, width }) => (
          <rect key={part.name} class={part.kind} x={x} y={0} width={width} height={40}>
            <title>{`${part.name}: ${formatBytes(part.bytes)}`}</title>
          </rect>
        ))}
      </svg>
      <ul class="legend">
        {parts.map((part) => (
          <li key={part.name}><span class={`swatch ${part.kind}`} aria-hidden="true" /> <span dir="auto">{part.name}</span> <small>{formatBytes(part.bytes)}</small></li>
        ))}
      </ul>
    </figure>
  );
}

function placed(parts: Part[], total: number) {
  let x = 0;
  return parts.map((part) => {
    const width = (part.bytes / total) * 1000;
    const found = { part, x, width: Math.max(0, width - 2) };
    x += width;
    return found;
  });
}

/** The weights of a model and the most that its cache takes; of one that only runs, what it holds. */
function partsOf(model: HostedModels["models"][number], index: number): Part[] {
  if (model.state === "unloaded") return [];
  const shade = index % 4;
  if (model.weight_bytes === undefined) {
    return model.memory_held ? [{ name: model.name, bytes: model.memory_held, kind: `weights-${shade}` }] : [];
  }
  const cache = model.kv_bytes ? [{ name: t("models.cache", model.name), bytes: model.kv_bytes, kind: `cache-${shade}` }] : [];
  return [{ name: t("models.weights", model.name), bytes: model.weight_bytes, kind: `weights-${shade}` }, ...cache];
}
