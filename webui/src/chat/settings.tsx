/** The settings of a conversation: system prompt, parameters, tools, format of the answer, presets. */
import type { ComponentChildren, VNode } from "preact";
import { useEffect, useState } from "preact/hooks";
import { models } from "../api/server";
import { change, current } from "../data/conversations";
import { all, put, remove } from "../data/database";
import { DEFAULT_SETTINGS, type Preset, type Settings } from "../data/types";
import { t } from "../text";
import { IconButton } from "../ui/icon";
import { FormatEditor } from "./format";
import { PARAMETERS, type Parameter } from "./parameters";
import { ToolsEditor } from "./tools-editor";
import { modelInUse } from "./turn";

export function SettingsPanel({ onClose }: { onClose: () => void }): VNode {
  const set = (values: Partial<Settings>) => void change({ settings: { ...current.value.settings, ...values } });
  return (
    <aside class="settings" aria-label={t("chat.settings")}>
      <header class="bar">
        <h2>{t("chat.settings")}</h2>
        <IconButton name="close" label={t("close")} onClick={onClose} />
      </header>
      <div class="settings-body">
        <SettingsFields settings={current.value.settings} set={set} />
        <Presets settings={current.value.settings} />
      </div>
    </aside>
  );
}

interface FieldsProps {
  settings: Settings;
  set: (values: Partial<Settings>) => void;
}

export function SettingsFields({ settings, set }: FieldsProps): VNode {
  const setStop = (text: string) => set({ stop: text.split("\n").filter(Boolean) });
  return (
    <>
      <label class="field">
        <span>{t("settings.system")}</span>
        <textarea rows={4} dir="auto" value={settings.system} onInput={(event) => set({ system: event.currentTarget.value })} />
      </label>
      <Section title={t("settings.parameters")} open>
        {PARAMETERS.map((parameter) => (
          <ParameterField key={parameter.name} parameter={parameter} settings={settings} set={set} />
        ))}
        <label class="field">
          <span>{t("param.stop")}</span>
          <textarea rows={2} value={settings.stop.join("\n")} onChange={(event) => setStop(event.currentTarget.value)} />
          <small>{t("param.stop.help")}</small>
        </label>
        <label class="field">
          <span>{t("param.thinking")}</span>
          <select value={settings.thinking} onChange={(event) => set({ thinking: event.currentTarget.value as Settings["thinking"] })}>
            <option value="default">{t("param.default")}</option>
            <option value="on">{t("param.on")}</option>
            <option value="off">{t("param.off")}</option>
          </select>
          <small>{t("param.thinking.help")}</small>
        </label>
        <label class="check">
          <input type="checkbox" checked={settings.logprobs} onChange={(event) => set({ logprobs: event.currentTarget.checked })} />
          <span>{t("param.logprobs")}</span>
        </label>
      </Section>
      <Section title={t("settings.tools")}>
        <ToolsEditor settings={settings} set={set} />
      </Section>
      <Section title={t("settings.format")}>
        <FormatEditor settings={settings} set={set} />
      </Section>
    </>
  );
}

function Section({ title, open = false, children }: { title: string; open?: boolean; children: ComponentChildren }): VNode {
  return (
    <details class="section" open={open}>
      <summary>{title}</summary>
      {children}
    </details>
  );
}

function ParameterField({ parameter, settings, set }: FieldsProps & { parameter: Parameter }): VNode {
  const { name, min, max, step } = parameter;
  const value = settings.parameters[name];
  const usual = models.value.find((card) => card.id === modelInUse())?.defaults?.[name];
  const [wrong, setWrong] = useState(false);
  const onInput = (text: string) => {
    const parameters = { ...settings.parameters };
    const number = Number(text);
    const bad = text !== "" && !(number >= min && number <= max && (step < 1 || Number.isInteger(number)));
    setWrong(bad);
    if (bad) return;
    if (text === "") delete parameters[name];
    else parameters[name] = number;
    set({ parameters });
  };
  const id = `param-${name}`;
  return (
    <div class="field">
      <label for={id}>{t(`param.${name}`)}</label>
      <input
        id={id}
        type="number"
        min={min}
        max={max}
        step={step}
        value={value ?? ""}
        placeholder={usual === undefined ? t("param.default") : t("param.usual", usual)}
        aria-describedby={`${id}-help`}
        aria-invalid={wrong}
        onInput={(event) => onInput(event.currentTarget.value)}
      />
      <small id={`${id}-help`} class={wrong ? "bad" : undefined}>
        {wrong ? t("param.range", min, max) : t(`param.${name}.help`)}
      </small>
    </div>
  );
}

function Presets({ settings }: { settings: Settings }): VNode {
  const [presets, setPresets] = useState<Preset[]>([]);
  const [name, setName] = useState("");
  const load = async () => setPresets(await all("presets"));
  useEffect(() => void load(), []);
  const use = (chosen: string) => {
    const found = presets.find((one) => one.name === chosen);
    if (!found) return;
    setName(found.name);
    void change({ settings: { ...DEFAULT_SETTINGS, ...found.settings } });
  };
  const save = async (event: Event) => {
    event.preventDefault();
    if (!name.trim()) return;
    await put("presets", { name: name.trim(), settings });
    await load();
  };
  const forget = async () => {
    await remove("presets", name);
    setName("");
    await load();
  };
  return (
    <Section title={t("settings.presets")}>
      {presets.length ? (
        <label class="field">
          <span>{t("preset.use")}</span>
          <select value="" onChange={(event) => use(event.currentTarget.value)}>
            <option value="">{t("preset.choose")}</option>
            {presets.map((one) => <option key={one.name} value={one.name}>{one.name}</option>)}
          </select>
        </label>
      ) : null}
      <form class="row" onSubmit={save}>
        <input value={name} dir="auto" maxLength={60} placeholder={t("preset.name")} aria-label={t("preset.name")} onInput={(event) => setName(event.currentTarget.value)} />
        <button type="submit">{t("save")}</button>
        <IconButton name="trash" label={t("preset.delete")} disabled={!presets.some((one) => one.name === name)} onClick={() => void forget()} />
      </form>
      <button type="button" class="link" onClick={() => void change({ settings: { ...DEFAULT_SETTINGS, model: settings.model } })}>{t("settings.reset")}</button>
    </Section>
  );
}
