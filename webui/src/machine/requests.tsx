/** The latest requests. */
import type { VNode } from "preact";
import { useState } from "preact/hooks";
import { call } from "../api/client";
import { formatNumber, formatSeconds, formatTime, t } from "../text";
import { useLoad } from "../ui/load";
import { go } from "../ui/route";

export interface RequestSummary {
  id: string;
  at: number;
  state: string;
  route: string | null;
  model: string | null;
  key: string | null;
  client: string;
  status: number;
  code: string | null;
  outcome: string | null;
  total_seconds: number;
  first_token_seconds: number | null;
  longest_phase: string | null;
  prompt_tokens: number;
  cached_tokens: number;
  generated_tokens: number;
  preemptions: number;
  recoveries: number;
}

export function Requests(): VNode {
  const { data, error } = useLoad(() => call<{ requests: RequestSummary[] }>("admin/requests?limit=50"), 3);
  const [id, setId] = useState("");
  const open = (event: Event) => {
    event.preventDefault();
    if (id.trim()) go("machine", id.trim());
  };
  return (
    <>
      <h2>{t("requests")}</h2>
      <form class="row" onSubmit={open}>
        <label class="field grow"><span>{t("requests.id")}</span><input value={id} onInput={(event) => setId(event.currentTarget.value)} /></label>
        <button type="submit" class="field">{t("requests.explain")}</button>
      </form>
      {error ? <p class="state bad">{error}</p> : null}
      <div class="table" tabIndex={0} role="region" aria-label={t("requests")}>
        <table>
          <thead>
            <tr>
              <th>{t("requests.at")}</th><th>{t("requests.id")}</th><th>{t("model")}</th><th>{t("requests.client")}</th>
              <th class="align-right">{t("requests.tokens")}</th><th class="align-right">{t("requests.first")}</th><th class="align-right">{t("requests.total")}</th><th>{t("requests.longest")}</th><th>{t("requests.status")}</th>
            </tr>
          </thead>
          <tbody>
            {data?.requests.map((one) => (
              <tr key={one.id}>
                <td>{formatTime(one.at * 1000)}</td>
                <td><a href={`#/machine/${encodeURIComponent(one.id)}`}>{one.id.slice(0, 16)}</a></td>
                <td dir="auto">{one.model ?? "–"}</td>
                <td dir="auto">{one.key ?? one.client}</td>
                <td class="align-right">{formatNumber(one.prompt_tokens)} + {formatNumber(one.generated_tokens)}</td>
                <td class="align-right">{one.first_token_seconds === null ? "–" : formatSeconds(one.first_token_seconds)}</td>
                <td class="align-right">{formatSeconds(one.total_seconds)}</td>
                <td>{one.longest_phase ?? "–"}</td>
                <td class={one.status >= 400 ? "bad" : undefined}>{one.code ?? one.outcome ?? one.state}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}
