/** The machine, live; and the requests, each with its explanation. */
import type { VNode } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { request } from "../api/client";
import { models, readsMetrics } from "../api/server";
import { formatNumber, t } from "../text";
import { errorText } from "../ui/notice";
import { route } from "../ui/route";
import { BlockMap } from "./blocks";
import { Chart } from "./chart";
import { Explanation } from "./explanation";
import { parseMetrics, type Metrics } from "./prometheus";
import { Requests } from "./requests";
import { pointOf, totalsOf, type Point, type Totals } from "./series";

/** Seconds between two readings: a reading takes the server some milliseconds. */
const INTERVAL = 2;
const KEPT = 300;

export function MachineView(): VNode {
  const id = route.value.rest;
  if (id) return <Explanation key={id} id={id} />;
  return (
    <section class="page" aria-label={t("nav.machine")}>
      <h1>{t("nav.machine")}</h1>
      {readsMetrics.value ? <Live /> : null}
      <Requests />
    </section>
  );
}

function Live(): VNode {
  const [model, setModel] = useState("");
  const { points, totals, error } = useMetrics(model);
  const times = points.map((point) => point.at);
  const line = (label: string, pick: (point: Point) => number | null) => ({ label, values: points.map(pick) });
  const last = points.at(-1);
  return (
    <>
      {models.value.length > 1 ? (
        <label class="field">
          <span>{t("model")}</span>
          <select value={model} onChange={(event) => setModel(event.currentTarget.value)}>
            <option value="">{t("machine.all")}</option>
            {models.value.map((card) => <option key={card.id} value={card.id}>{card.id}</option>)}
          </select>
        </label>
      ) : null}
      {error ? <p class="state bad" role="alert">{error}</p> : null}
      {totals ? <Tiles totals={totals} last={last} /> : null}
      <BlockMap model={model} />
      <div class="charts">
        <Chart title={t("machine.rate")} times={times} least={10} lines={[line(t("machine.generated"), (p) => p.generated), line(t("machine.prefilled"), (p) => p.prefilled)]} />
        <Chart title={t("machine.load")} times={times} least={4} lines={[line(t("machine.running"), (p) => p.running), line(t("machine.queued"), (p) => p.queued), line(t("machine.rows"), (p) => p.rows)]} />
        <Chart title={t("machine.gaps")} times={times} least={10} lines={[line(t("machine.median"), (p) => p.gap50), line(t("machine.p95"), (p) => p.gap95)]} />
        <Chart title={t("machine.cache")} times={times} least={10} lines={[line(t("machine.used"), (p) => p.used)]} />
        <Chart title={t("machine.errors")} times={times} least={1} lines={[line(t("machine.errors"), (p) => p.errors)]} />
        {points.some((point) => point.acceptance !== null) ? (
          <Chart title={t("machine.acceptance")} times={times} least={100} lines={[line(t("machine.acceptance"), (p) => p.acceptance)]} />
        ) : null}
      </div>
    </>
  );
}

function Tiles({ totals, last }: { totals: Totals; last: Point | undefined }): VNode {
  const hits = totals.promptTokens ? (100 * totals.cachedTokens) / totals.promptTokens : 0;
  const tiles: [string, string, string][] = [
    [t("machine.generated"), last ? formatNumber(last.generated) : "–", t("machine.per-second")],
    [t("machine.running"), last ? formatNumber(last.running) : "–", t("machine.waiting", last ? formatNumber(last.queued) : "–")],
    [t("machine.queue"), formatNumber(totals.queueTokens), t("machine.of", formatNumber(totals.queueBound))],
    [t("machine.cache"), formatNumber(totals.blocksUsed), t("machine.blocks", formatNumber(totals.blocks))],
    [t("machine.hits"), `${formatNumber(hits, 1)} %`, t("machine.of-prompts")],
    [t("machine.requests"), formatNumber(totals.requests), t("machine.refused", formatNumber(totals.refused))],
    [t("machine.restarts"), formatNumber(totals.restarts), t("machine.replayed", formatNumber(totals.replayed))],
    [t("machine.preemptions"), formatNumber(totals.preemptions), ""],
  ];
  return (
    <dl class="tiles">
      {tiles.map(([name, value, more]) => (
        <div key={name} class="tile"><dt>{name}</dt><dd>{value}{more ? <small>{more}</small> : null}</dd></div>
      ))}
    </dl>
  );
}

interface Reading {
  at: number;
  metrics: Metrics;
}

/** Reads the metrics while the view is open and visible. */
function useMetrics(model: string): { points: Point[]; totals: Totals | undefined; error: string } {
  const [readings, setReadings] = useState<Reading[]>([]);
  const [error, setError] = useState("");
  useEffect(() => {
    const abort = new AbortController();
    let timer = 0;
    const round = async () => {
      if (!document.hidden) {
        try {
          const text = await (await request("metrics", { headers: { Accept: "text/plain" }, signal: abort.signal })).text();
          const reading = { at: Date.now() / 1000, metrics: parseMetrics(text) };
          setReadings((before) => [...before.slice(-KEPT), reading]);
          setError("");
        } catch (problem) {
          if (!abort.signal.aborted) setError(errorText(problem));
        }
      }
      if (!abort.signal.aborted) timer = window.setTimeout(round, INTERVAL * 1000);
    };
    void round();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, []);
  // A point is made once: a chart of ten minutes does not read its histograms anew every two seconds.
  const made = useRef(new Map<string, Point>());
  const points = readings.slice(1).map((now, index) => {
    const key = `${model}\n${now.at}`;
    let point = made.current.get(key);
    if (!point) {
      const before = readings[index]!;
      point = pointOf(now.metrics, before.metrics, now.at - before.at, now.at, model);
      made.current.set(key, point);
    }
    return point;
  });
  const latest = readings.at(-1);
  return { points, totals: latest && totalsOf(latest.metrics, model), error };
}
