/** Batches of the person's key: their state, results, and how to begin and end one. */
import type { VNode } from "preact";
import { useRef } from "preact/hooks";
import { ApiError, apiKey, base, call, request } from "../api/client";
import { download } from "../data/transfer";
import { formatNumber, formatTime, t } from "../text";
import { useLoad } from "../ui/load";
import { notifyError } from "../ui/notice";

interface Batch {
  id: string;
  endpoint: string;
  status: string;
  created_at: number;
  request_counts: { total: number; completed: number; failed: number };
  output_file_id: string | null;
  error_file_id: string | null;
}

const ENDED = new Set(["completed", "failed", "cancelled", "expired"]);

export function BatchesView(): VNode {
  const { data, error, reload } = useLoad(() => call<{ data: Batch[] }>("v1/batches?limit=100"), 3);
  const picker = useRef<HTMLInputElement>(null);
  const run = async (work: () => Promise<unknown>) => {
    try {
      await work();
    } catch (problem) {
      notifyError(problem);
    }
    await reload();
  };
  const fetchFile = (id: string) =>
    run(async () => download(`${id}.jsonl`, await (await request(`v1/files/${encodeURIComponent(id)}/content`)).text(), "application/jsonl"));
  return (
    <>
      <div class="row">
        <button type="button" onClick={() => picker.current?.click()}>{t("batches.new")}</button>
        <small>{t("batches.help")}</small>
        <input ref={picker} type="file" hidden accept=".jsonl" aria-label={t("batches.new")} onChange={(event) => void run(() => begin(event.currentTarget.files?.[0]))} />
      </div>
      {error ? <p class="state bad" role="alert">{error}</p> : null}
      {data?.data.length === 0 ? <p class="hint">{t("batches.none")}</p> : null}
      <div class="table" tabIndex={0} role="region" aria-label={t("admin.batches")}>
        <table>
          <thead><tr><th>{t("batches.id")}</th><th>{t("requests.at")}</th><th>{t("models.state")}</th><th>{t("batches.lines")}</th><th>{t("models.actions")}</th></tr></thead>
          <tbody>
            {data?.data.map((batch) => {
              const { total, completed, failed } = batch.request_counts;
              return (
                <tr key={batch.id}>
                  <td><code>{batch.id.slice(0, 18)}</code> <small>{batch.endpoint}</small></td>
                  <td>{formatTime(batch.created_at * 1000)}</td>
                  <td><span class={`badge ${batch.status}`}>{batch.status}</span></td>
                  <td><progress max={Math.max(1, total)} value={completed + failed} aria-label={t("batches.done", completed + failed, total)} /> {formatNumber(completed + failed)} / {formatNumber(total)}</td>
                  <td>
                    <span class="row">
                      {batch.output_file_id ? <button type="button" onClick={() => void fetchFile(batch.output_file_id!)}>{t("batches.results")}</button> : null}
                      {batch.error_file_id ? <button type="button" onClick={() => void fetchFile(batch.error_file_id!)}>{t("batches.errors")}</button> : null}
                      {ENDED.has(batch.status) ? null : <button type="button" onClick={() => void run(() => call(`v1/batches/${batch.id}/cancel`, { method: "POST", body: {} }))}>{t("cancel")}</button>}
                    </span>
                  </td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
    </>
  );
}

/** Upload a file of lines and begin its batch; the endpoint is that of its first line. */
async function begin(file: File | undefined): Promise<void> {
  if (!file) return;
  const first = JSON.parse((await file.slice(0, 1_000_000).text()).split("\n")[0] || "{}") as { url?: string };
  const form = new FormData();
  form.append("purpose", "batch");
  form.append("file", file, file.name);
  const headers: Record<string, string> = apiKey.value ? { Authorization: `Bearer ${apiKey.value}` } : {};
  const response = await fetch(new URL("v1/files", base), { method: "POST", headers, body: form });
  const answer = (await response.json()) as { id: string; error?: { message: string } };
  if (!response.ok) throw new ApiError(response.status, answer.error?.message ?? response.statusText);
  await call("v1/batches", { body: { input_file_id: answer.id, endpoint: first.url ?? "/v1/chat/completions", completion_window: "24h" } });
}
