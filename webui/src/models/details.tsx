/** What is known of one model, as `tidemill show` and its card say it. */
import type { VNode } from "preact";
import { call } from "../api/client";
import { models } from "../api/server";
import { t } from "../text";
import { Dialog } from "../ui/dialog";
import { useLoad } from "../ui/load";

interface Shown {
  template?: string;
  parameters?: string;
  license?: string;
  system?: string;
  details?: Record<string, unknown>;
  capabilities?: string[];
  model_info?: Record<string, unknown>;
}

export function Details({ name, onClose }: { name: string; onClose: () => void }): VNode {
  const { data, error } = useLoad(() => call<Shown>("api/show", { body: { model: name } }));
  const card = models.value.find((one) => one.id === name);
  const facts = Object.entries({ ...card, ...data?.details, ...data?.model_info }).filter(([, value]) => value !== null && value !== "");
  return (
    <Dialog title={name} wide onClose={onClose}>
      {error ? <p class="state bad" role="alert">{error}</p> : null}
      {data?.capabilities?.length ? <p>{data.capabilities.map((one) => <span key={one} class="badge">{one}</span>)}</p> : null}
      <table class="facts">
        <tbody>
          {facts.map(([key, value]) => (
            <tr key={key}><th scope="row">{key}</th><td dir="auto">{text(value)}</td></tr>
          ))}
        </tbody>
      </table>
      <Part title={t("models.parameters")} text={data?.parameters} />
      <Part title={t("settings.system")} text={data?.system} />
      <Part title={t("models.template")} text={data?.template} />
      <Part title={t("models.licence")} text={data?.license} />
    </Dialog>
  );
}

function text(value: unknown): string {
  const written = typeof value === "string" ? value : JSON.stringify(value);
  return written.length > 400 ? `${written.slice(0, 400)}…` : written;
}

function Part({ title, text: content }: { title: string; text: string | undefined }): VNode | null {
  if (!content) return null;
  return (
    <details class="section">
      <summary>{title}</summary>
      <pre tabIndex={0}>{content}</pre>
    </details>
  );
}
