/** Prometheus' text format, as far as /metrics writes it. */

export interface Sample {
  labels: Record<string, string>;
  value: number;
}

export type Metrics = Map<string, Sample[]>;

export function parseMetrics(text: string): Metrics {
  const found: Metrics = new Map();
  for (const line of text.split("\n")) {
    if (!line || line.startsWith("#")) continue;
    const end = line.lastIndexOf(" ");
    const open = line.indexOf("{");
    const name = line.slice(0, open >= 0 ? open : end);
    if (name.endsWith("_created")) continue;
    const labels: Record<string, string> = {};
    if (open >= 0) {
      for (const match of line.slice(open + 1, line.lastIndexOf("}")).matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
        labels[match[1]!] = match[2]!.replace(/\\(.)/g, (_, one: string) => (one === "n" ? "\n" : one));
      }
    }
    const sample = { labels, value: Number(line.slice(end + 1)) };
    const samples = found.get(name);
    if (samples) samples.push(sample);
    else found.set(name, [sample]);
  }
  return found;
}

/** The sum of a metric's samples with some labels. */
export function total(metrics: Metrics, name: string, where: (labels: Record<string, string>) => boolean = () => true): number {
  return (metrics.get(`tidemill_${name}`) ?? []).reduce((sum, sample) => (where(sample.labels) ? sum + sample.value : sum), 0);
}

/** A quantile of what a histogram has counted between two readings; undefined where it is nothing. */
export function quantile(now: Metrics, before: Metrics, name: string, part: number, where: (labels: Record<string, string>) => boolean): number | undefined {
  const buckets = (metrics: Metrics) => {
    const sums = new Map<number, number>();
    for (const { labels, value } of metrics.get(`tidemill_${name}_bucket`) ?? []) {
      if (!where(labels)) continue;
      const bound = labels["le"] === "+Inf" ? Infinity : Number(labels["le"]);
      sums.set(bound, (sums.get(bound) ?? 0) + value);
    }
    return sums;
  };
  const old = buckets(before);
  const counts = [...buckets(now)].sort((a, b) => a[0] - b[0]).map(([bound, value]) => [bound, value - (old.get(bound) ?? 0)] as const);
  const all = counts.at(-1)?.[1] ?? 0;
  if (all <= 0) return undefined;
  let lower = 0;
  let below = 0;
  for (const [bound, count] of counts) {
    if (count >= all * part) {
      if (bound === Infinity) return lower;
      return lower + ((bound - lower) * (all * part - below)) / Math.max(1, count - below);
    }
    lower = bound;
    below = count;
  }
  return lower;
}
