/** A small benchmark of this server from this page, and its report. */
import type { VNode } from "preact";
import { useRef, useState } from "preact/hooks";
import { chatModels, readsMetrics } from "../api/server";
import { download } from "../data/transfer";
import { formatNumber, formatSeconds, t } from "../text";
import { ModelSelect } from "../ui/model-select";
import { errorText } from "../ui/notice";
import { measure, type BenchOptions, type Report } from "./measure";

const DEFAULTS: BenchOptions = { model: "", requests: 12, concurrency: 4, prompt: 200, tokens: 100 };

/** A browser holds so many connections to one server. */
const MOST_PARALLEL = 6;

export function BenchView(): VNode {
  const [options, setOptions] = useState(DEFAULTS);
  const [done, setDone] = useState(-1);
  const [report, setReport] = useState<Report | null>(null);
  const [error, setError] = useState("");
  const abort = useRef<AbortController | null>(null);
  const model = options.model || (chatModels.value[0]?.id ?? "");
  const start = async (event: Event) => {
    event.preventDefault();
    abort.current = new AbortController();
    setError("");
    setReport(null);
    setDone(0);
    try {
      setReport(await measure({ ...options, model }, setDone, abort.current.signal));
    } catch (problem) {
      if (!abort.current.signal.aborted) setError(errorText(problem));
    }
    setDone(-1);
  };
  const number = (name: "requests" | "concurrency" | "prompt" | "tokens", most: number) => (
    <label class="field">
      <span>{t(`bench.${name}`)}</span>
      <input type="number" min={1} max={most} required value={options[name]} onInput={(event) => setOptions({ ...options, [name]: Math.max(1, Math.min(most, Number(event.currentTarget.value))) })} />
    </label>
  );
  return (
    <section class="page" aria-label={t("nav.bench")}>
      <h1>{t("nav.bench")}</h1>
      <p>{t("bench.help")}</p>
      <form class="row" onSubmit={start}>
        <label class="field"><span>{t("model")}</span><ModelSelect value={model} onChange={(name) => setOptions({ ...options, model: name })} /></label>
        {number("requests", 200)}
        {number("concurrency", MOST_PARALLEL)}
        {number("prompt", 4000)}
        {number("tokens", 2000)}
        {done < 0 ? <button type="submit" class="primary field">{t("bench.start")}</button> : <button type="button" class="field" onClick={() => abort.current?.abort()}>{t("cancel")}</button>}
      </form>
      {done >= 0 ? <p role="status"><progress max={options.requests} value={done} aria-label={t("bench.progress")} /> {done} / {options.requests}</p> : null}
      {error ? <p class="state bad" role="alert">{error}</p> : null}
      {report ? <Shown report={report} /> : null}
    </section>
  );
}

function Shown({ report }: { report: Report }): VNode {
  const rows: [string, Report["ttft"]][] = [
    [t("bench.ttft"), report.ttft],
    [t("bench.gap"), report.gaps],
    [t("bench.whole"), report.whole],
  ];
  return (
    <>
      <dl class="tiles">
        <div class="tile"><dt>{t("bench.output")}</dt><dd>{formatNumber(report.tokensPerSecond, 1)}<small>{t("machine.per-second")}</small></dd></div>
        <div class="tile"><dt>{t("bench.rate")}</dt><dd>{formatNumber(report.requestsPerSecond, 2)}<small>{t("bench.per-second")}</small></dd></div>
        <div class="tile"><dt>{t("bench.time")}</dt><dd>{formatSeconds(report.seconds)}</dd></div>
        <div class="tile"><dt>{t("bench.failed")}</dt><dd>{formatNumber(report.failed)}</dd></div>
      </dl>
      <div class="table" tabIndex={0} role="region" aria-label={t("nav.bench")}>
        <table>
          <thead><tr><th></th>{["p50", "p90", "p99", t("bench.most")].map((name) => <th key={name} class="align-right">{name}</th>)}</tr></thead>
          <tbody>{rows.map(([name, values]) => <tr key={name}><th scope="row">{name}</th>{[values.p50, values.p90, values.p99, values.most].map((value, index) => <td key={index} class="align-right">{formatSeconds(value)}</td>)}</tr>)}</tbody>
        </table>
      </div>
      <div class="row">
        <button type="button" onClick={() => download("benchmark.json", JSON.stringify(report, null, 1), "application/json")}>JSON</button>
        {readsMetrics.value ? <a href="#/machine">{t("nav.machine")}</a> : null}
      </div>
    </>
  );
}
