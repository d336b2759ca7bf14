/** Limits of teams, users and keys, and what is used of them. */
import type { VNode } from "preact";
import { useState } from "preact/hooks";
import { call } from "../api/client";
import { managesKeys } from "../api/server";
import { formatNumber, t } from "../text";
import { useLoad } from "../ui/load";
import { notifyError } from "../ui/notice";

interface Quota {
  level: string;
  name: string | null;
  id?: string;
  limits: Record<string, unknown>;
  used?: Record<string, number>;
}

const LIMITS = ["requests_per_minute", "tokens_per_minute", "tokens_per_day", "tokens_per_month", "money_per_month", "concurrent_requests"];

export function QuotasView(): VNode {
  const { data, error, reload } = useLoad(() => call<{ quotas: Quota[] }>("admin/quotas"));
  return (
    <>
      {error ? <p class="state bad" role="alert">{error}</p> : null}
      {managesKeys.value ? <SetLimit onDone={reload} /> : null}
      {data?.quotas.length === 0 ? <p class="hint">{t("quotas.none")}</p> : null}
      <div class="table" tabIndex={0} role="region" aria-label={t("admin.quotas")}>
        <table>
          <thead><tr><th>{t("quotas.level")}</th><th>{t("keys.name")}</th><th>{t("quotas.limits")}</th><th>{t("quotas.used")}</th></tr></thead>
          <tbody>
            {data?.quotas.map((quota, index) => (
              <tr key={index}><td>{quota.level}</td><td dir="auto">{quota.name ?? quota.id ?? ""}</td><td>{listed(quota.limits)}</td><td>{listed(quota.used)}</td></tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

function listed(values: Record<string, unknown> | undefined): VNode {
  const entries = Object.entries(values ?? {});
  return <ul class="plain-list">{entries.map(([name, value]) => <li key={name}>{name}: {typeof value === "number" ? formatNumber(value, 4) : JSON.stringify(value)}</li>)}</ul>;
}

function SetLimit({ onDone }: { onDone: () => Promise<void> }): VNode {
  const [level, setLevel] = useState("key");
  const [name, setName] = useState("");
  const [limit, setLimit] = useState(LIMITS[0]!);
  const [value, setValue] = useState("");
  const save = async (event: Event) => {
    event.preventDefault();
    try {
      await call("admin/quotas", { body: { level, name: level === "server" ? "" : name.trim(), limits: { [limit]: value === "" ? "default" : Number(value) } } });
    } catch (problem) {
      notifyError(problem);
    }
    await onDone();
  };
  return (
    <form class="card" onSubmit={save}>
      <h2>{t("quotas.set")}</h2>
      <div class="row">
        <label class="field"><span>{t("quotas.level")}</span><select value={level} onChange={(event) => setLevel(event.currentTarget.value)}>{["key", "user", "team", "organisation", "server"].map((one) => <option key={one}>{one}</option>)}</select></label>
        {level === "server" ? null : <label class="field grow"><span>{t("keys.name")}</span><input dir="auto" value={name} required onInput={(event) => setName(event.currentTarget.value)} /></label>}
        <label class="field"><span>{t("quotas.limit")}</span><input list="limits" value={limit} required onInput={(event) => setLimit(event.currentTarget.value)} /></label>
        <datalist id="limits">{LIMITS.map((one) => <option key={one} value={one} />)}</datalist>
        <label class="field"><span>{t("quotas.value")}</span><input type="number" min={0} step="any" value={value} placeholder={t("param.default")} onInput={(event) => setValue(event.currentTarget.value)} /></label>
        <button type="submit" class="primary field">{t("save")}</button>
      </div>
    </form>
  );
}
