/** What was used: by day, and by key, model and more, as charts and tables. */
import type { VNode } from "preact";
import { useState } from "preact/hooks";
import { call, request } from "../api/client";
import { download } from "../data/transfer";
import { formatNumber, t } from "../text";
import { useLoad } from "../ui/load";
import { notifyError } from "../ui/notice";

interface Row {
  [dimension: string]: unknown;
  requests: number;
  refused: number;
  prompt_tokens: number;
  cached_tokens: number;
  generated_tokens: number;
  cost: number;
}

interface Report {
  currency: string;
  rows: Row[];
  total: Row;
  lost_requests: number;
}

const DIMENSIONS = ["key", "model", "team", "user", "version", "operation", "day", "hour"];

export function UsageView(): VNode {
  const [by, setBy] = useState("key");
  const [since, setSince] = useState("30d");
  const query = `since=${since}`;
  const days = useLoad(() => call<Report>(`admin/usage?by=${since === "24h" ? "hour" : "day"}&${query}`), 30, [since]);
  const { data, error } = useLoad(() => call<Report>(`admin/usage?by=${by}&${query}`), 30, [by, since]);
  const csv = async () => {
    try {
      download(`usage-${by}.csv`, await (await request(`admin/usage?by=${by}&${query}&format=csv`)).text(), "text/csv");
    } catch (problem) {
      notifyError(problem);
    }
  };
  const time = since === "24h" ? "hour" : "day";
  const bars = (days.data?.rows ?? []).map((row) => ({ name: String(row[time]), value: row.prompt_tokens + row.generated_tokens }));
  return (
    <>
      <div class="row">
        <label class="field"><span>{t("usage.by")}</span><select value={by} onChange={(event) => setBy(event.currentTarget.value)}>{DIMENSIONS.map((one) => <option key={one}>{one}</option>)}</select></label>
        <label class="field"><span>{t("usage.since")}</span><select value={since} onChange={(event) => setSince(event.currentTarget.value)}>{["24h", "7d", "30d", "365d"].map((one) => <option key={one}>{one}</option>)}</select></label>
        <button type="button" class="field" onClick={() => void csv()}>CSV</button>
      </div>
      {error ? <p class="state bad" role="alert">{error}</p> : null}
      <Bars title={t("usage.tokens-by", time)} bars={bars} />
      {data ? <Bars title={t("usage.tokens-by", by)} bars={data.rows.map((row) => ({ name: String(row[by] || "–"), value: row.prompt_tokens + row.generated_tokens }))} /> : null}
      {data ? <Table report={data} by={by} /> : null}
      {data?.lost_requests ? <p class="state bad">{t("usage.lost", formatNumber(data.lost_requests))}</p> : null}
    </>
  );
}

function Table({ report, by }: { report: Report; by: string }): VNode {
  const cells = (row: Row) => [row.requests, row.refused, row.prompt_tokens, row.cached_tokens, row.generated_tokens];
  const names = [t("models.requests"), t("usage.refused"), t("usage.prompt"), t("usage.cached"), t("usage.generated"), report.currency];
  const line = (name: string, row: Row) => (
    <tr key={name}>
      <td dir="auto">{name}</td>
      {cells(row).map((value, index) => <td key={index} class="align-right">{formatNumber(value)}</td>)}
      <td class="align-right">{formatNumber(row.cost, 4)}</td>
    </tr>
  );
  return (
    <div class="table" tabIndex={0} role="region" aria-label={t("admin.usage")}>
      <table>
        <thead><tr><th>{by}</th>{names.map((name) => <th key={name} class="align-right">{name}</th>)}</tr></thead>
        <tbody>{report.rows.map((row) => line(String(row[by] || "–"), row))}{line(t("usage.total"), report.total)}</tbody>
      </table>
    </div>
  );
}

const WIDTH = 720;
const HEIGHT = 120;
const MOST = 60;

function Bars({ title, bars }: { title: string; bars: { name: string; value: number }[] }): VNode | null {
  const shown = bars.slice(-MOST);
  if (!shown.length) return null;
  const most = Math.max(1, ...shown.map((bar) => bar.value));
  const width = Math.min(60, WIDTH / shown.length);
  return (
    <figure class="chart">
      <figcaption>{title}</figcaption>
      <svg class="bars" viewBox={`0 0 ${WIDTH} ${HEIGHT + 16}`} role="img" aria-label={shown.map((bar) => `${bar.name}: ${formatNumber(bar.value)}`).join(", ")}>
        {shown.map((bar, index) => {
          const height = (bar.value / most) * HEIGHT;
          return (
            <g key={bar.name}>
              <rect x={index * width + 1} y={HEIGHT - height} width={Math.max(1, width - 3)} height={height}>
                <title>{`${bar.name}: ${formatNumber(bar.value)}`}</title>
              </rect>
              {shown.length <= 12 ? <text x={index * width + 2} y={HEIGHT + 13}>{bar.name.slice(-Math.max(4, Math.floor(width / 7)))}</text> : null}
            </g>
          );
        })}
      </svg>
    </figure>
  );
}
