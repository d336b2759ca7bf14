/** Pulling a model into the library, with its progress. */
import type { VNode } from "preact";
import { useRef, useState } from "preact/hooks";
import { request } from "../api/client";
import { formatBytes, t } from "../text";
import { notify, notifyError } from "../ui/notice";

interface Progress {
  status: string;
  completed?: number;
  total?: number;
  message?: string;
  model?: string;
  error?: { message?: string };
}

export function Pull({ onDone }: { onDone: () => Promise<void> }): VNode {
  const [source, setSource] = useState("");
  const [name, setName] = useState("");
  const [progress, setProgress] = useState<Progress | null>(null);
  const abort = useRef<AbortController | null>(null);

  const pull = async (event: Event) => {
    event.preventDefault();
    if (!source.trim()) return;
    abort.current = new AbortController();
    setProgress({ status: t("models.pull.begins") });
    try {
      const last = await readLines(source.trim(), name.trim(), setProgress, abort.current.signal);
      if (last?.error) throw new Error(last.error.message);
      notify(t("models.pull.done", last?.model ?? source));
      setSource("");
      setName("");
    } catch (problem) {
      if (!abort.current.signal.aborted) notifyError(problem);
    }
    setProgress(null);
    await onDone();
  };
  return (
    <form class="pull" onSubmit={pull}>
      <h2>{t("models.pull")}</h2>
      <div class="row">
        <label class="field grow"><span>{t("models.pull.source")}</span><input value={source} placeholder="owner/name" onInput={(event) => setSource(event.currentTarget.value)} aria-describedby="pull-help" /></label>
        <label class="field"><span>{t("models.pull.name")}</span><input value={name} onInput={(event) => setName(event.currentTarget.value)} /></label>
        {progress ? <button type="button" onClick={() => abort.current?.abort()}>{t("cancel")}</button> : <button type="submit" class="primary field" disabled={!source.trim()}>{t("models.pull.start")}</button>}
      </div>
      <small id="pull-help">{t("models.pull.help")}</small>
      {progress ? (
        <p role="status">
          {progress.message ?? progress.status}{" "}
          {progress.total ? (
            <>
              <progress max={progress.total} value={progress.completed ?? 0} aria-label={progress.status} /> {formatBytes(progress.completed ?? 0)} / {formatBytes(progress.total)}
            </>
          ) : null}
        </p>
      ) : null}
    </form>
  );
}

/** The last line of the progress. */
async function readLines(source: string, name: string, onLine: (line: Progress) => void, signal: AbortSignal): Promise<Progress | undefined> {
  const response = await request("admin/models/pull", {
    body: { source, ...(name ? { as: name } : {}) },
    headers: { Accept: "application/x-ndjson" },
    signal,
  });
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let last: Progress | undefined;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return last;
    const lines = (rest + value).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines.filter(Boolean)) {
      last = JSON.parse(line) as Progress;
      onLine(last);
    }
  }
}
