/** Language, light or dark, and the keys of the page. */
import type { VNode } from "preact";
import { signal } from "@preact/signals";
import { me } from "./api/server";
import { chooseRemote, keepsRemotely } from "./data/remote";
import { LANGUAGES } from "./text/table";
import { language, setLanguage, t, type TextKey } from "./text";

const STORED = "tidemill.theme";
const THEMES = ["auto", "light", "dark"] as const;
const theme = signal(localStorage.getItem(STORED) ?? "auto");

/** Light or dark as the person has chosen, or as the system is. */
export function applyTheme(): void {
  const root = document.documentElement;
  if (theme.value === "auto") delete root.dataset["theme"];
  else root.dataset["theme"] = theme.value;
}

const SHORTCUTS: [string, TextKey][] = [
  ["Enter", "key.send"],
  ["Shift + Enter", "key.line"],
  ["Esc", "key.stop"],
  ["/", "key.composer"],
  ["Alt + N", "key.new"],
  ["Alt + S", "key.settings"],
  ["Alt + 1 … 6", "key.views"],
  ["?", "key.help"],
];

export function Preferences(): VNode {
  const choose = (value: string) => {
    theme.value = value;
    localStorage.setItem(STORED, value);
    applyTheme();
  };
  return (
    <>
      <label class="field">
        <span>{t("preferences.language")}</span>
        <select value={language.value} onChange={(event) => setLanguage(event.currentTarget.value)}>
          {LANGUAGES.map(([code, name]) => <option key={code} value={code}>{name}</option>)}
        </select>
      </label>
      <label class="field">
        <span>{t("preferences.theme")}</span>
        <select value={theme.value} onChange={(event) => choose(event.currentTarget.value)}>
          {THEMES.map((name) => <option key={name} value={name}>{t(`theme.${name}`)}</option>)}
        </select>
      </label>
      {me.value?.content ? (
        <label class="check">
          <input type="checkbox" checked={keepsRemotely.value} onChange={(event) => void chooseRemote(event.currentTarget.checked)} />
          <span>{t("preferences.remote")}</span>
        </label>
      ) : null}
      <h3>{t("preferences.keys")}</h3>
      <table class="facts">
        <tbody>
          {SHORTCUTS.map(([keys, key]) => <tr key={key}><th scope="row"><kbd>{keys}</kbd></th><td>{t(key)}</td></tr>)}
        </tbody>
      </table>
      <p class="hint">Tidemill {me.value?.version} · <a href="./webui/licences.txt" target="_blank" rel="noopener">{t("preferences.licences")}</a></p>
    </>
  );
}
