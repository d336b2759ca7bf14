/** Names with versions: how their traffic is divided, what is known of each, and how to end it. */
import type { VNode } from "preact";
import { useState } from "preact/hooks";
import { call } from "../api/client";
import { formatNumber, formatSeconds, t } from "../text";
import { useLoad } from "../ui/load";
import { notifyError } from "../ui/notice";

interface Arm {
  version: string;
  percent: number;
  requests: number;
  failures: number;
}

interface Metric {
  metric: string;
  relative: boolean;
  baseline: number | null;
  variant: number | null;
  effect: number | null;
  low: number | null;
  high: number | null;
  limit_low: number | null;
  limit_high: number | null;
  verdict: string;
}

interface Rollout {
  name: string;
  versions: string[];
  percents: Record<string, number>;
  running: boolean;
  rollout: {
    phase: string;
    step: number;
    steps: number[];
    percent: number;
    seconds: number;
    waiting_for: string[];
    arms: Arm[];
    metrics: Metric[];
    events: { kind?: string; event?: string; at?: number; text?: string }[];
  } | null;
  experiment: { arms: Arm[] } | null;
}

export function Rollouts(): VNode | null {
  const { data, reload } = useLoad(() => call<{ rollouts: Rollout[] }>("admin/rollouts"), 5);
  if (!data?.rollouts.length) return null;
  return (
    <>
      <h2>{t("rollouts")}</h2>
      {data.rollouts.map((one) => <RolloutCard key={one.name} rollout={one} onChange={reload} />)}
    </>
  );
}

function RolloutCard({ rollout, onChange }: { rollout: Rollout; onChange: () => Promise<void> }): VNode {
  const [to, setTo] = useState(rollout.versions.at(-1) ?? "");
  const act = async (path: string, body: unknown) => {
    try {
      await call(path, { body });
    } catch (problem) {
      notifyError(problem);
    }
    await onChange();
  };
  const name = encodeURIComponent(rollout.name);
  const state = rollout.rollout;
  const arms = state?.arms ?? rollout.experiment?.arms ?? [];
  return (
    <article class="card">
      <h3 dir="auto">{rollout.name}</h3>
      <Shares percents={rollout.percents} />
      {state ? <p>{t("rollouts.state", state.phase, state.step, state.steps.length, formatNumber(state.percent, 1), formatSeconds(state.seconds))} {state.waiting_for.join("; ")}</p> : null}
      {arms.length ? (
        <table>
          <thead><tr><th>{t("rollouts.version")}</th><th class="align-right">{t("rollouts.share")}</th><th class="align-right">{t("models.requests")}</th><th class="align-right">{t("rollouts.failures")}</th></tr></thead>
          <tbody>
            {arms.map((arm) => (
              <tr key={arm.version}><td dir="auto">{arm.version}</td><td class="align-right">{formatNumber(arm.percent, 1)} %</td><td class="align-right">{formatNumber(arm.requests)}</td><td class="align-right">{formatNumber(arm.failures)}</td></tr>
            ))}
          </tbody>
        </table>
      ) : null}
      {state?.metrics.length ? <Comparison metrics={state.metrics} /> : null}
      {rollout.running ? (
        <div class="buttons">
          <button type="button" onClick={() => void act(`admin/rollouts/${name}/abort`, {})}>{t("rollouts.abort")}</button>
          <button type="button" class="primary" onClick={() => void act(`admin/rollouts/${name}/promote`, {})}>{t("rollouts.promote")}</button>
        </div>
      ) : (
        <div class="row">
          <label>{t("rollouts.to")} <select value={to} onChange={(event) => setTo(event.currentTarget.value)}>{rollout.versions.map((version) => <option key={version}>{version}</option>)}</select></label>
          <button type="button" onClick={() => void act("admin/rollouts", { name: rollout.name, to: to.split("@").at(-1) })}>{t("rollouts.start")}</button>
        </div>
      )}
    </article>
  );
}

/** What is known of each metric: the effect with its interval, and the limit that it is held to. */
function Comparison({ metrics }: { metrics: Metric[] }): VNode {
  const percent = (value: number | null) => (value === null ? "–" : `${formatNumber(value * 100, 1)} %`);
  return (
    <div class="table" tabIndex={0} role="region" aria-label={t("rollouts.comparison")}>
      <table>
        <thead><tr><th>{t("rollouts.metric")}</th><th class="align-right">{t("rollouts.effect")}</th><th>{t("compare.interval")}</th><th class="align-right">{t("quotas.limit")}</th><th>{t("rollouts.verdict")}</th></tr></thead>
        <tbody>
          {metrics.map((one) => (
            <tr key={one.metric}>
              <td>{one.metric}</td>
              <td class="align-right">{percent(one.effect)}</td>
              <td><Interval metric={one} /> <small>{percent(one.low)} … {percent(one.high)}</small></td>
              <td class="align-right">{percent(one.limit_high ?? one.limit_low)}</td>
              <td>{one.verdict}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** From half below to half above the baseline; the limit is a dashed line. */
function Interval({ metric }: { metric: Metric }): VNode {
  const x = (value: number) => Math.max(2, Math.min(158, 80 + value * 156));
  const limit = metric.limit_high ?? metric.limit_low;
  return (
    <svg class="interval" width="160" height="16" viewBox="0 0 160 16" aria-hidden="true">
      <line class="zero" x1="80" x2="80" y1="0" y2="16" />
      {limit === null ? null : <line class="limit" x1={x(limit)} x2={x(limit)} y1="0" y2="16" />}
      <line x1={x(metric.low ?? -1)} x2={x(metric.high ?? 1)} y1="8" y2="8" />
      {metric.effect === null ? null : <circle cx={x(metric.effect)} cy="8" r="3.5" />}
    </svg>
  );
}

function Shares({ percents }: { percents: Record<string, number> }): VNode {
  const parts = Object.entries(percents);
  let x = 0;
  return (
    <>
      <svg class="stack" viewBox="0 0 1000 24" preserveAspectRatio="none" role="img" aria-label={parts.map(([name, percent]) => `${name} ${percent} %`).join(", ")}>
        {parts.map(([name, percent], index) => {
          const width = percent * 10;
          const rect = <rect key={name} class={`weights-${index % 4}`} x={x} y={0} width={Math.max(0, width - 2)} height={24} />;
          x += width;
          return rect;
        })}
      </svg>
      <ul class="legend">
        {parts.map(([name, percent], index) => <li key={name}><span class={`swatch weights-${index % 4}`} aria-hidden="true" /> {name} <small>{formatNumber(percent, 1)} %</small></li>)}
      </ul>
    </>
  );
}
