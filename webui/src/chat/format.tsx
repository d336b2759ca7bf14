/** The format of the answer: text, JSON, or JSON by a schema, whose editor shows whether it is one. */
import type { VNode } from "preact";
import { useState } from "preact/hooks";
import type { Settings } from "../data/types";
import { t } from "../text";

export function FormatEditor({ settings, set }: { settings: Settings; set: (values: Partial<Settings>) => void }): VNode {
  // What is being written is kept when it is JSON, so that a request never has half a schema.
  const [text, setText] = useState(settings.schema);
  const problem = schemaProblem(text);
  const onInput = (value: string) => {
    setText(value);
    if (!schemaProblem(value)) set({ schema: value });
  };
  return (
    <div>
      <label class="field">
        <span>{t("settings.format")}</span>
        <select value={settings.format} onChange={(event) => set({ format: event.currentTarget.value as Settings["format"] })}>
          <option value="text">{t("format.text")}</option>
          <option value="json">{t("format.json")}</option>
          <option value="schema">{t("format.schema")}</option>
        </select>
      </label>
      {settings.format === "schema" ? (
        <label class="field">
          <span>{t("format.schema")}</span>
          <textarea rows={10} class="code-input" spellcheck={false} value={text} aria-invalid={problem !== ""} onInput={(event) => onInput(event.currentTarget.value)} />
          <small class={problem ? "bad" : "good"} role="status">{problem || t("schema.is-json")}</small>
        </label>
      ) : null}
    </div>
  );
}

const TYPES = new Set(["object", "array", "string", "number", "integer", "boolean", "null"]);

/** What is wrong with the text of a schema; "": nothing that can be seen here. The server checks the rest. */
export function schemaProblem(text: string): string {
  let schema: unknown;
  try {
    schema = JSON.parse(text);
  } catch (error) {
    return (error as Error).message;
  }
  return problemAt(schema, "");
}

function problemAt(schema: unknown, path: string): string {
  const where = path || "/";
  if (typeof schema === "boolean") return "";
  if (typeof schema !== "object" || schema === null || Array.isArray(schema)) return t("schema.not-object", where);
  const { type, properties, items, required } = schema as Record<string, unknown>;
  for (const one of Array.isArray(type) ? type : type === undefined ? [] : [type]) {
    if (!TYPES.has(one as string)) return t("schema.bad-type", where, String(one));
  }
  if (required !== undefined && !(Array.isArray(required) && required.every((name) => typeof name === "string"))) {
    return t("schema.bad-required", where);
  }
  for (const [name, one] of Object.entries((properties as object | undefined) ?? {})) {
    const problem = problemAt(one, `${path}/properties/${name}`);
    if (problem) return problem;
  }
  return items === undefined || Array.isArray(items) ? "" : problemAt(items, `${path}/items`);
}
