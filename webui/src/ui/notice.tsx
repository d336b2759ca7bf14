/** Messages that come and go, read out by screen readers. */
import { signal } from "@preact/signals";
import type { VNode } from "preact";
import { ApiError } from "../api/client";
import { t } from "../text";
import { IconButton } from "./icon";

interface Notice {
  id: number;
  text: string;
  bad: boolean;
}

const notices = signal<Notice[]>([]);
let last = 0;

export function notify(text: string, bad = false): void {
  const id = ++last;
  notices.value = [...notices.value.slice(-3), { id, text, bad }];
  setTimeout(() => dismiss(id), bad ? 12_000 : 4000);
}

/** Say what went wrong; a key that is asked for is said by the login. */
export function notifyError(error: unknown): void {
  if (error instanceof ApiError && error.status === 401) return;
  notify(errorText(error), true);
}

export function errorText(error: unknown): string {
  if (error instanceof ApiError) return error.status === 0 ? t("error.unreachable") : error.message;
  return error instanceof Error ? error.message : String(error);
}

function dismiss(id: number): void {
  notices.value = notices.value.filter((one) => one.id !== id);
}

export function Notices(): VNode {
  return (
    <div class="notices" role="status" aria-live="polite">
      {notices.value.map((one) => (
        <div key={one.id} class={one.bad ? "notice bad" : "notice"}>
          <span>{one.text}</span>
          <IconButton name="close" label={t("close")} onClick={() => dismiss(one.id)} />
        </div>
      ))}
    </div>
  );
}
