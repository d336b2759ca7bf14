/** What the live view shows, from one reading of the metrics and the one before. */
import { quantile, total, type Metrics } from "./prometheus";

export interface Point {
  at: number;
  generated: number;
  prefilled: number;
  queued: number;
  running: number;
  rows: number;
  used: number;
  gap50: number | null;
  gap95: number | null;
  errors: number;
  acceptance: number | null;
}

export interface Totals {
  blocks: number;
  blocksUsed: number;
  queueTokens: number;
  queueBound: number;
  cachedTokens: number;
  promptTokens: number;
  restarts: number;
  replayed: number;
  preemptions: number;
  refused: number;
  requests: number;
}

export function pointOf(now: Metrics, before: Metrics, seconds: number, at: number, model: string): Point {
  const where = (labels: Record<string, string>) => !model || labels["model"] === undefined || labels["model"] === model;
  const rate = (name: string, only = where) => Math.max(0, (total(now, name, only) - total(before, name, only)) / seconds);
  const steps = rate("steps_total");
  const drafted = rate("drafted_tokens_total");
  const blocks = total(now, "kv_blocks", where);
  return {
    at,
    generated: rate("engine_generated_tokens_total"),
    prefilled: rate("engine_prompt_tokens_total"),
    queued: total(now, "queue_sequences", where),
    running: total(now, "running_sequences", where),
    rows: steps ? rate("step_rows_total") / steps : 0,
    used: blocks ? (100 * total(now, "kv_blocks_used", where)) / blocks : 0,
    gap50: milliseconds(quantile(now, before, "itl_seconds", 0.5, where)),
    gap95: milliseconds(quantile(now, before, "itl_seconds", 0.95, where)),
    errors: rate("http_responses_total", (labels) => Number(labels["status"] ?? labels["code"] ?? 0) >= 500),
    acceptance: drafted ? (100 * rate("drafts_accepted_total")) / drafted : null,
  };
}

function milliseconds(seconds: number | undefined): number | null {
  return seconds === undefined ? null : seconds * 1000;
}

export function totalsOf(now: Metrics, model: string): Totals {
  const where = (labels: Record<string, string>) => !model || labels["model"] === undefined || labels["model"] === model;
  const sum = (name: string) => total(now, name, where);
  return {
    blocks: sum("kv_blocks"),
    blocksUsed: sum("kv_blocks_used"),
    queueTokens: sum("queue_tokens"),
    queueBound: sum("queue_tokens_bound"),
    cachedTokens: sum("prefix_cache_hit_tokens_total"),
    promptTokens: sum("prompt_tokens_total"),
    restarts: sum("engine_restarts_total"),
    replayed: sum("requests_replayed_total"),
    preemptions: sum("preemptions_total"),
    refused: sum("requests_refused_total"),
    requests: sum("requests_total"),
  };
}
