/** Calls of tools in an answer, and the form in which a person gives the result. */
import type { VNode } from "preact";
import { useState } from "preact/hooks";
import type { Message, ToolCall } from "../data/types";
import { t } from "../text";
import { giveResult, resultsOf } from "./turn";

export function Calls({ message, live, last }: { message: Message; live: boolean; last: boolean }): VNode {
  const answered = new Set(resultsOf(message).map((result) => result.callId));
  const next = live ? undefined : message.calls!.find((call) => !answered.has(call.id));
  const open = last || answered.size > 0;
  return (
    <div class="calls">
      {message.calls!.map((call) => (
        <div key={call.id} class="call">
          <div class="call-name">{t("tool.call", call.name)}</div>
          <pre tabIndex={0} dir="ltr"><code>{pretty(call.arguments)}</code></pre>
          {call === next && open ? <ResultForm message={message} call={call} /> : null}
        </div>
      ))}
    </div>
  );
}

function pretty(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function ResultForm({ message, call }: { message: Message; call: ToolCall }): VNode {
  const [text, setText] = useState("");
  const submit = (event: Event) => {
    event.preventDefault();
    void giveResult(message, call.id, text);
  };
  return (
    <form class="result" onSubmit={submit}>
      <label>
        {t("tool.answer", call.name)}
        <textarea rows={2} dir="auto" value={text} onInput={(event) => setText(event.currentTarget.value)} />
      </label>
      <button type="submit" class="primary">{t("tool.send")}</button>
    </form>
  );
}
