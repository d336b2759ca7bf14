/** The tools that a model is offered: those of the page, and ones that a person answers by hand. */
import type { VNode } from "preact";
import { useState } from "preact/hooks";
import type { CustomTool, Settings } from "../data/types";
import { t } from "../text";
import { IconButton } from "../ui/icon";
import { builtinTools } from "./tools";

const NAME = /^[A-Za-z0-9_.-]{1,64}$/;
const EMPTY: CustomTool = { name: "", description: "", parameters: '{"type": "object", "properties": {}}' };

export function ToolsEditor({ settings, set }: { settings: Settings; set: (values: Partial<Settings>) => void }): VNode {
  const [draft, setDraft] = useState<CustomTool>(EMPTY);
  const toggle = (name: string, on: boolean) => {
    const others = settings.builtinTools.filter((one) => one !== name);
    set({ builtinTools: on ? [...others, name] : others });
  };
  const problem = problemOf(draft);
  const add = (event: Event) => {
    event.preventDefault();
    if (problem) return;
    set({ tools: [...settings.tools.filter((tool) => tool.name !== draft.name), draft] });
    setDraft(EMPTY);
  };
  return (
    <div>
      {builtinTools.map(({ name }) => (
        <label key={name} class="check">
          <input type="checkbox" checked={settings.builtinTools.includes(name)} onChange={(event) => toggle(name, event.currentTarget.checked)} />
          <span>{name} <small>{t("tool.builtin")}</small></span>
        </label>
      ))}
      <ul class="plain-list">
        {settings.tools.map((tool) => (
          <li key={tool.name} class="row">
            <button type="button" class="link" onClick={() => setDraft(tool)}>{tool.name}</button>
            <IconButton name="trash" label={t("tool.remove", tool.name)} onClick={() => set({ tools: settings.tools.filter((one) => one !== tool) })} />
          </li>
        ))}
      </ul>
      <form onSubmit={add}>
        <label class="field"><span>{t("tool.name")}</span><input value={draft.name} onInput={(event) => setDraft({ ...draft, name: event.currentTarget.value })} /></label>
        <label class="field"><span>{t("tool.description")}</span><input dir="auto" value={draft.description} onInput={(event) => setDraft({ ...draft, description: event.currentTarget.value })} /></label>
        <label class="field">
          <span>{t("tool.parameters")}</span>
          <textarea rows={4} class="code-input" spellcheck={false} value={draft.parameters} onInput={(event) => setDraft({ ...draft, parameters: event.currentTarget.value })} />
        </label>
        {draft.name && problem ? <p class="state bad">{problem}</p> : null}
        <button type="submit" disabled={problem !== ""}>{t("tool.add")}</button>
      </form>
    </div>
  );
}

function problemOf(tool: CustomTool): string {
  if (!NAME.test(tool.name)) return t("tool.bad-name");
  try {
    JSON.parse(tool.parameters);
    return "";
  } catch (error) {
    return (error as Error).message;
  }
}
