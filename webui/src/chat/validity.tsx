/** Whether an answer obeys the schema of the conversation. */
import type { VNode } from "preact";
import { useEffect, useState } from "preact/hooks";
import { current } from "../data/conversations";
import type { Message } from "../data/types";
import { t } from "../text";

export function Validity({ message }: { message: Message }): VNode | null {
  const { format, schema } = current.value.settings;
  const [problem, setProblem] = useState<string | null>(null);
  const checked = format !== "text" && !message.state && !message.calls?.length && message.content !== "";
  useEffect(() => {
    if (!checked) return;
    let latest = true;
    void problemOf(message.content, format === "schema" ? schema : "").then((found) => latest && setProblem(found));
    return () => {
      latest = false;
    };
  }, [checked, message.content, format, schema]);
  if (!checked || problem === null) return null;
  return problem === "" ? <p class="state good">{t("schema.valid")}</p> : <p class="state bad">{t("schema.invalid", problem)}</p>;
}

/** What is wrong with a JSON text; "": nothing. */
async function problemOf(text: string, schema: string): Promise<string> {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    return String((error as Error).message);
  }
  if (!schema) return "";
  const { Validator } = await import("@cfworker/json-schema");
  try {
    const found = new Validator(JSON.parse(schema), "2020-12").validate(value);
    const error = found.errors.at(-1);
    return found.valid || !error ? "" : `${error.instanceLocation}: ${error.error}`;
  } catch (error) {
    return String((error as Error).message);
  }
}
