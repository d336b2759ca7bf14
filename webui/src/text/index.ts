/** Texts of the page in the language of the person. */
import { computed, signal } from "@preact/signals";
import { LANGUAGES, TEXTS } from "./table";

export type TextKey = keyof typeof TEXTS;

const STORED = "tidemill.language";

function preferred(): number {
  const wanted = [localStorage.getItem(STORED) ?? "", ...navigator.languages];
  for (const tag of wanted) {
    const index = LANGUAGES.findIndex(([code]) => tag.toLowerCase().split("-")[0] === code);
    if (index >= 0) return index;
  }
  return 0;
}

const index = signal(preferred());

/** The code of the language. */
export const language = computed(() => LANGUAGES[index.value]![0]);

export function setLanguage(code: string): void {
  const found = LANGUAGES.findIndex(([known]) => known === code);
  if (found < 0) return;
  localStorage.setItem(STORED, code);
  index.value = found;
}

/** The text of a key; `{0}`, `{1}`, ... are replaced by the values. */
export function t(key: TextKey, ...values: (string | number)[]): string {
  const row: readonly string[] = TEXTS[key];
  const text = row[index.value] || row[0]!;
  return values.length ? text.replace(/\{(\d)\}/g, (_, n) => String(values[Number(n)] ?? "")) : text;
}

export function formatNumber(value: number, digits = 0): string {
  return value.toLocaleString(language.value, { maximumFractionDigits: digits });
}

export function formatBytes(value: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${formatNumber(value, unit && value < 100 ? 1 : 0)} ${units[unit]}`;
}

export function formatTime(milliseconds: number): string {
  return new Date(milliseconds).toLocaleString(language.value, { dateStyle: "medium", timeStyle: "short" });
}

/** The time of a day that is today; else the day. */
export function formatClock(milliseconds: number): string {
  const then = new Date(milliseconds);
  const today = then.toDateString() === new Date().toDateString();
  return today ? then.toLocaleTimeString(language.value, { timeStyle: "short" }) : then.toLocaleDateString(language.value, { dateStyle: "medium" });
}

export function formatSeconds(seconds: number): string {
  if (seconds < 1) return `${formatNumber(seconds * 1000, seconds < 0.01 ? 2 : 0)} ms`;
  return `${formatNumber(seconds, 2)} s`;
}
