/** A button that copies a text. */
import type { VNode } from "preact";
import { useState } from "preact/hooks";
import { t } from "../text";
import { Icon } from "./icon";

export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Plain HTTP from another machine: there is no clipboard but by a selection.
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

export function CopyButton({ text, label }: { text: string | (() => string); label?: string }): VNode {
  const [done, setDone] = useState(false);
  const copy = async () => {
    setDone(await copyText(typeof text === "string" ? text : text()));
    setTimeout(() => setDone(false), 1500);
  };
  const name = done ? t("copied") : (label ?? t("copy"));
  return (
    <button type="button" class="icon" title={name} aria-label={name} onClick={copy}>
      <Icon name={done ? "check" : "copy"} />
    </button>
  );
}
