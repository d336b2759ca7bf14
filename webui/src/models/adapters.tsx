/** The adapters of the served models: which there are, and for administrators loading and unloading. */
import type { VNode } from "preact";
import { useState } from "preact/hooks";
import { request } from "../api/client";
import { models } from "../api/server";
import { t } from "../text";
import { notifyError } from "../ui/notice";

export function Adapters({ onChange }: { onChange: () => Promise<void> }): VNode {
  const [name, setName] = useState("");
  const [path, setPath] = useState("");
  const act = async (route: string, body: unknown) => {
    try {
      await request(route, { body });
    } catch (problem) {
      notifyError(problem);
    }
    await onChange();
  };
  const load = async (event: Event) => {
    event.preventDefault();
    await act("v1/load_lora_adapter", { lora_name: name.trim(), lora_path: path.trim() });
    setName("");
  };
  const found = models.value.filter((card) => card.parent);
  return (
    <form onSubmit={load}>
      <h2>{t("adapters")}</h2>
      {found.length ? (
        <table>
          <thead><tr><th>{t("keys.name")}</th><th>{t("adapters.base")}</th><th>{t("models.actions")}</th></tr></thead>
          <tbody>
            {found.map((card) => (
              <tr key={card.id}>
                <td dir="auto">{card.id}</td><td dir="auto">{card.parent}</td>
                <td><button type="button" onClick={() => void act("v1/unload_lora_adapter", { lora_name: card.id })}>{t("models.unload")}</button></td>
              </tr>
            ))}
          </tbody>
        </table>
      ) : null}
      <div class="row">
        <label class="field"><span>{t("adapters.name")}</span><input value={name} onInput={(event) => setName(event.currentTarget.value)} /></label>
        <label class="field grow"><span>{t("adapters.path")}</span><input value={path} onInput={(event) => setPath(event.currentTarget.value)} /></label>
        <button type="submit" class="field" disabled={!name.trim() || !path.trim()}>{t("adapters.load")}</button>
      </div>
    </form>
  );
}
