/** The audit log, and whether it is whole. */
import type { VNode } from "preact";
import { useState } from "preact/hooks";
import { call } from "../api/client";
import { formatNumber, formatTime, t } from "../text";
import { useLoad } from "../ui/load";
import { notifyError } from "../ui/notice";

interface Row {
  chain: string;
  seq: number;
  at: number;
  kind: string;
  actor: string;
  subject: string;
  detail: unknown;
}

interface Verification {
  valid: boolean;
  chains: { chain: string; rows: number; fault: string | null }[];
}

export function AuditView(): VNode {
  const [acts, setActs] = useState(true);
  const [more, setMore] = useState<Row[]>([]);
  const path = (before?: number) => `admin/audit?limit=100${acts ? "&acts=true" : ""}${before ? `&before=${before}` : ""}`;
  const { data, error } = useLoad(async () => {
    setMore([]);
    return call<{ rows: Row[] }>(path());
  }, 0, [acts]);
  const rows = [...(data?.rows ?? []), ...more];
  const earlier = async () => {
    try {
      const found = await call<{ rows: Row[] }>(path(rows.at(-1)?.at));
      setMore([...more, ...found.rows]);
    } catch (problem) {
      notifyError(problem);
    }
  };
  return (
    <>
      <Verify />
      <label class="check"><input type="checkbox" checked={acts} onChange={(event) => setActs(event.currentTarget.checked)} /> <span>{t("audit.acts")}</span></label>
      {error ? <p class="state bad" role="alert">{error}</p> : null}
      <div class="table" tabIndex={0} role="region" aria-label={t("admin.audit")}>
        <table>
          <thead><tr><th>{t("requests.at")}</th><th>{t("audit.kind")}</th><th>{t("audit.actor")}</th><th>{t("audit.subject")}</th><th>{t("audit.detail")}</th></tr></thead>
          <tbody>
            {rows.map((row) => (
              <tr key={`${row.chain}/${row.seq}`}>
                <td>{formatTime(row.at * 1000)}</td><td>{row.kind}</td><td dir="auto">{row.actor}</td><td dir="auto">{row.subject}</td>
                <td>{row.detail === null ? t("audit.erased") : <details><summary>{t("audit.detail")}</summary><pre tabIndex={0}>{JSON.stringify(row.detail, null, 1)}</pre></details>}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {rows.length >= 100 ? <button type="button" onClick={() => void earlier()}>{t("more")}</button> : null}
    </>
  );
}

function Verify(): VNode {
  const [found, setFound] = useState<Verification | null>(null);
  const [busy, setBusy] = useState(false);
  const verify = async () => {
    setBusy(true);
    try {
      setFound(await call<Verification>("admin/audit/verification"));
    } catch (problem) {
      notifyError(problem);
    }
    setBusy(false);
  };
  const rows = found?.chains.reduce((sum, chain) => sum + chain.rows, 0) ?? 0;
  return (
    <div role="status">
      <button type="button" disabled={busy} onClick={() => void verify()}>{t("audit.verify")}</button>
      {found?.valid ? <p class="state good">{t("audit.whole", formatNumber(rows), found.chains.length)}</p> : null}
      {found && !found.valid ? (
        <ul class="bad">{found.chains.filter((chain) => chain.fault).map((chain) => <li key={chain.chain}>{chain.fault}</li>)}</ul>
      ) : null}
    </div>
  );
}
