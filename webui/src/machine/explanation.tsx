/** Where the time of one request went, and why. */
import type { VNode } from "preact";
import { call } from "../api/client";
import { formatNumber, formatSeconds, formatTime, t } from "../text";
import { useLoad } from "../ui/load";
import type { RequestSummary } from "./requests";

interface Phase {
  name: string;
  seconds: number;
  at: number;
}

interface Gap {
  at: number;
  seconds: number;
  token: number;
  cause: string;
  step_rows: number;
  step_tokens: number;
}

interface Choice {
  choice: number;
  finish: string | null;
  tokens: number;
  decode: { gaps: number; p50: number; p90: number; p99: number; longest: number; slowest: Gap[] } | null;
  chunks: { at: number; start: number; tokens: number; limit: string; why: string }[];
}

interface Explained extends RequestSummary {
  phases: Phase[];
  reasons: string[];
  prompts: { prompt: number; cache: { cached: number; why: string } | null; choices: Choice[] }[];
  cost: number | null;
  currency: string | null;
  energy_joules: number | null;
}

export function Explanation({ id }: { id: string }): VNode {
  const { data, error } = useLoad(() => call<Explained>(`admin/requests/${encodeURIComponent(id)}`));
  return (
    <section class="page" aria-label={t("requests.explain")}>
      <p><a href="#/machine">← {t("nav.machine")}</a></p>
      <h1>{t("requests.one", id)}</h1>
      {error ? <p class="state bad" role="alert">{error}</p> : null}
      {data ? <Found data={data} /> : null}
    </section>
  );
}

function Found({ data }: { data: Explained }): VNode {
  const facts: [string, string][] = [
    [t("requests.at"), formatTime(data.at * 1000)],
    [t("requests.route"), data.route ?? "–"],
    [t("model"), data.model ?? "–"],
    [t("requests.client"), data.key ?? data.client],
    [t("requests.status"), `${data.status} ${data.code ?? data.outcome ?? data.state}`],
    [t("requests.tokens"), `${formatNumber(data.prompt_tokens)} (${t("chat.cached", formatNumber(data.cached_tokens))}) + ${formatNumber(data.generated_tokens)}`],
    [t("requests.total"), formatSeconds(data.total_seconds)],
    [t("requests.first"), data.first_token_seconds === null ? "–" : formatSeconds(data.first_token_seconds)],
    [t("machine.preemptions"), formatNumber(data.preemptions)],
    [t("machine.restarts"), formatNumber(data.recoveries)],
    ...(data.cost === null ? [] : [[t("requests.cost"), `${formatNumber(data.cost, 6)} ${data.currency ?? ""}`] as [string, string]]),
  ];
  const choices = data.prompts.flatMap((prompt) => prompt.choices);
  return (
    <>
      <TimeLine phases={data.phases} total={data.total_seconds} />
      <ul>{data.reasons.map((reason, index) => <li key={index}>{reason}</li>)}</ul>
      <table class="facts">
        <tbody>{facts.map(([name, value]) => <tr key={name}><th scope="row">{name}</th><td dir="auto">{value}</td></tr>)}</tbody>
      </table>
      {choices.map((choice) => <Gaps key={choice.choice} choice={choice} />)}
    </>
  );
}

function TimeLine({ phases, total }: { phases: Phase[]; total: number }): VNode | null {
  if (!phases.length || total <= 0) return null;
  const label = phases.map((phase) => `${phase.name} ${formatSeconds(phase.seconds)}`).join(", ");
  return (
    <figure class="memory">
      <svg class="stack phases" viewBox="0 0 1000 40" preserveAspectRatio="none" role="img" aria-label={label}>
        {phases.map((phase, index) => (
          <rect key={phase.name} class={`phase-${index % 12}`} x={(phase.at / total) * 1000} y={0} width={Math.max(1, (phase.seconds / total) * 1000)} height={40}>
            <title>{`${phase.name}: ${formatSeconds(phase.seconds)}`}</title>
          </rect>
        ))}
      </svg>
      <ul class="legend">
        {phases.map((phase, index) => <li key={phase.name}><span class={`swatch phase-${index % 12}`} aria-hidden="true" /> {phase.name} <small>{formatSeconds(phase.seconds)}</small></li>)}
      </ul>
    </figure>
  );
}

function Gaps({ choice }: { choice: Choice }): VNode {
  const { decode, chunks } = choice;
  return (
    <>
      <h2>{t("requests.choice", choice.choice + 1, formatNumber(choice.tokens), choice.finish ?? "–")}</h2>
      {decode ? (
        <>
          <p>{t("requests.gaps", formatNumber(decode.gaps), formatSeconds(decode.p50), formatSeconds(decode.p90), formatSeconds(decode.p99), formatSeconds(decode.longest))}</p>
          <table>
            <caption class="visually-hidden">{t("requests.slowest")}</caption>
            <thead><tr><th class="align-right">{t("requests.token")}</th><th class="align-right">{t("requests.gap")}</th><th>{t("requests.cause")}</th><th class="align-right">{t("machine.rows")}</th></tr></thead>
            <tbody>{decode.slowest.map((gap) => <tr key={gap.token}><td class="align-right">{gap.token}</td><td class="align-right">{formatSeconds(gap.seconds)}</td><td>{gap.cause}</td><td class="align-right">{gap.step_rows}</td></tr>)}</tbody>
          </table>
        </>
      ) : null}
      {chunks.length ? (
        <details class="section">
          <summary>{t("requests.chunks", chunks.length)}</summary>
          <ul>{chunks.map((chunk, index) => <li key={index}>{t("requests.chunk", formatNumber(chunk.start), formatNumber(chunk.tokens), formatSeconds(chunk.at))} {chunk.why}</li>)}</ul>
        </details>
      ) : null}
    </>
  );
}
