/** The models of the server: what is there, what is loaded, what it takes of the machine. */
import type { VNode } from "preact";
import { useState } from "preact/hooks";
import { call } from "../api/client";
import { isAdmin, me, models, refreshModels } from "../api/server";
import { formatBytes, formatNumber, t, type TextKey } from "../text";
import { IconButton } from "../ui/icon";
import { useLoad } from "../ui/load";
import { notifyError } from "../ui/notice";
import { Adapters } from "./adapters";
import { Details } from "./details";
import { MemoryMap } from "./memory";
import { Pull } from "./pull";
import { Rollouts } from "./rollouts";

export interface HostedModel {
  name: string;
  aliases: string[];
  state: "unloaded" | "loading" | "loaded" | "asleep" | "unloading";
  requests?: number;
  waiting?: number;
  pinned?: boolean;
  until?: number | null;
  memory?: number;
  memory_held?: number;
  progress?: number;
  weight_bytes?: number;
  kv_bytes?: number;
  error?: string;
}

export interface HostedModels {
  memory_budget: number | null;
  memory_held?: number;
  models: HostedModel[];
}

/** What a person who is no administrator may know of the models. */
async function plainModels(): Promise<HostedModels> {
  await refreshModels();
  const found = models.value.map((card) => ({
    name: card.id,
    aliases: [],
    state: (card.state || "unloaded") as HostedModel["state"],
    progress: card.progress,
  }));
  return { memory_budget: null, models: found };
}

export function ModelsView(): VNode {
  const load = () => (isAdmin.value ? call<HostedModels>("admin/models?memory=true") : plainModels());
  const { data, error, reload } = useLoad(load, 3, [isAdmin.value]);
  const [shown, setShown] = useState("");
  const changed = async () => {
    await Promise.all([reload(), refreshModels()]);
  };
  return (
    <section class="page" aria-label={t("nav.models")}>
      <h1>{t("nav.models")}</h1>
      {error ? <p class="state bad" role="alert">{error}</p> : null}
      {data && isAdmin.value ? <MemoryMap models={data} /> : null}
      <div class="table" tabIndex={0} role="region" aria-label={t("nav.models")}>
        <table>
          <thead>
            <tr>
              <th>{t("model")}</th>
              <th>{t("models.state")}</th>
              <th class="align-right">{t("models.memory")}</th>
              <th class="align-right">{t("models.requests")}</th>
              <th>{t("models.actions")}</th>
            </tr>
          </thead>
          <tbody>
            {data?.models.map((model) => (
              <ModelRow key={model.name} model={model} onChange={changed} onShow={() => setShown(model.name)} />
            ))}
          </tbody>
        </table>
      </div>
      {isAdmin.value && me.value?.library ? <Pull onDone={changed} /> : null}
      {isAdmin.value ? <Adapters onChange={changed} /> : null}
      {isAdmin.value ? <Rollouts /> : null}
      {shown ? <Details name={shown} onClose={() => setShown("")} /> : null}
    </section>
  );
}

interface RowProps {
  model: HostedModel;
  onChange: () => Promise<void>;
  onShow: () => void;
}

function ModelRow({ model, onChange, onShow }: RowProps): VNode {
  const [busy, setBusy] = useState(false);
  const act = async (path: string, body?: unknown, method?: string) => {
    setBusy(true);
    try {
      await call(path, { body, method });
    } catch (problem) {
      notifyError(problem);
    }
    setBusy(false);
    await onChange();
  };
  const unused = model.state === "unloaded" || model.state === "asleep";
  const bytes = model.memory_held ?? model.memory;
  const remove = () => {
    if (confirm(t("models.delete.sure", model.name))) void act(`admin/models/${encodeURIComponent(model.name)}`, undefined, "DELETE");
  };
  return (
    <tr>
      <td dir="auto">
        <button type="button" class="link" onClick={onShow}>{model.name}</button>
        {model.aliases.length ? <small> {model.aliases.join(", ")}</small> : null}
        {model.error ? <p class="state bad">{model.error}</p> : null}
      </td>
      <td>
        <span class={`badge ${model.state}`}>{t(`models.state.${model.state}` as TextKey)}</span>
        {model.pinned ? <small> {t("models.pinned")}</small> : null}
        {model.state === "loading" && model.progress !== undefined ? (
          <progress max={1} value={model.progress} aria-label={t("models.progress", formatNumber(model.progress * 100))} />
        ) : null}
        {typeof model.until === "number" ? <small> {t("models.until", formatNumber(model.until))}</small> : null}
      </td>
      <td class="align-right">{bytes === undefined ? "–" : formatBytes(bytes)}</td>
      <td class="align-right">{model.requests === undefined ? "–" : formatNumber(model.requests + (model.waiting ?? 0))}</td>
      <td>
        {isAdmin.value ? (
          <span class="row">
            {unused ? (
              <button type="button" disabled={busy} onClick={() => void act("admin/models/load", { model: model.name })}>{t("models.load")}</button>
            ) : (
              <>
                <button type="button" disabled={busy || model.state !== "loaded"} onClick={() => void act("admin/models/unload", { model: model.name })}>{t("models.unload")}</button>
                <button type="button" disabled={busy || model.state !== "loaded"} onClick={() => void act("admin/models/sleep", { model: model.name })}>{t("models.sleep")}</button>
              </>
            )}
            {me.value?.library ? <IconButton name="trash" label={t("models.delete", model.name)} disabled={busy} onClick={remove} /> : null}
          </span>
        ) : null}
      </td>
    </tr>
  );
}
