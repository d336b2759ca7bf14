/** One message: its text, thinking, calls and figures, its versions, and what can be done with it. */
import type { VNode } from "preact";
import { memo } from "preact/compat";
import { useState } from "preact/hooks";
import { currentTree, keepAs, removeMessage, showLeaf, branch, current } from "../data/conversations";
import type { Message } from "../data/types";
import { Markdown } from "../markdown/render";
import { formatClock, formatNumber, formatTime, t } from "../text";
import { CopyButton } from "../ui/copy";
import { IconButton } from "../ui/icon";
import { go } from "../ui/route";
import { Calls } from "./calls";
import { continueAnswer } from "./generate";
import { Probabilities } from "./probabilities";
import { edit, regenerate } from "./turn";
import { Validity } from "./validity";

interface Props {
  message: Message;
  live: boolean;
  last: boolean;
}

/** Drawn again when the message has changed, not with every other one. */
export const MessageView = memo(
  Shown,
  (before: Props, next: Props) => before.message === next.message && before.live === next.live && before.last === next.last,
);

function Shown({ message, live, last }: Props): VNode {
  const [editing, setEditing] = useState(false);
  const [colours, setColours] = useState(false);
  const who = message.role === "user" ? t("you") : message.role === "tool" ? t("tool.result") : message.model || t("assistant");
  return (
    <article class={`message ${message.role}`} aria-label={who} aria-busy={live}>
      <header>
        <span class="who" dir="auto">{who}</span>
        <time dateTime={new Date(message.created).toISOString()} title={formatTime(message.created)}>{formatClock(message.created)}</time>
      </header>
      {message.thinking ? <Thinking text={message.thinking} open={live && !message.content} /> : null}
      {message.attachments?.map((file) => (
        <details key={file.name} class="attachment">
          <summary dir="auto">{file.name}</summary>
          <pre tabIndex={0}>{file.text}</pre>
        </details>
      ))}
      {editing ? (
        <Editor message={message} onClose={() => setEditing(false)} />
      ) : colours && message.logprobs ? (
        <Probabilities tokens={message.logprobs} />
      ) : message.role === "assistant" ? (
        <Markdown text={message.content} live={live} />
      ) : (
        <div class="plain" dir="auto">{message.content}</div>
      )}
      {live && !message.content && !message.thinking ? <span class="waiting" role="status">{t("chat.waiting")}</span> : null}
      {message.calls?.length ? <Calls message={message} live={live} last={last} /> : null}
      {message.role === "assistant" && !live && !editing ? <Validity message={message} /> : null}
      <State message={message} live={live} />
      {editing ? null : (
        <footer>
          <Versions message={message} />
          <CopyButton text={message.content} />
          {message.role === "tool" ? null : <IconButton name="edit" label={t("edit")} disabled={live} onClick={() => setEditing(true)} />}
          {message.role === "assistant" ? (
            <IconButton name="again" label={t("chat.regenerate")} disabled={live} onClick={() => void regenerate(message)} />
          ) : null}
          {message.logprobs?.length ? (
            <IconButton name="chart" label={t("chat.probabilities")} pressed={colours} onClick={() => setColours(!colours)} />
          ) : null}
          <IconButton name="fork" label={t("chat.fork")} disabled={live} onClick={() => void fork(message)} />
          <IconButton name="trash" label={t("chat.delete-message")} disabled={live} onClick={() => void removeMessage(message)} />
          <Figures message={message} />
        </footer>
      )}
    </article>
  );
}

/** The branch up to a message as a conversation of its own. */
async function fork(message: Message): Promise<void> {
  const path = branch.value;
  const messages = path.slice(0, path.findIndex((one) => one.id === message.id) + 1);
  await keepAs(t("chat.forked", current.value.title), current.value.settings, messages, message.id);
  go("chat", current.value.id);
}

function Thinking({ text, open }: { text: string; open: boolean }): VNode {
  return (
    <details class="thinking" open={open || undefined}>
      <summary>{open ? t("chat.thinking") : t("chat.thought")}</summary>
      <div class="plain" dir="auto">{text}</div>
    </details>
  );
}

function State({ message, live }: { message: Message; live: boolean }): VNode | null {
  if (live || !message.state) {
    return message.finish === "length" && !live ? <p class="state">{t("chat.length")} <Continue message={message} /></p> : null;
  }
  if (message.state === "error") {
    return <p class="state bad" role="alert">{message.error || t("error.unreachable")} {message.content ? <Continue message={message} /> : null}</p>;
  }
  if (message.state === "streaming") return <p class="state">{t("chat.elsewhere")}</p>;
  return <p class="state">{t(message.state === "stopped" ? "chat.stopped" : "chat.interrupted")} {message.content ? <Continue message={message} /> : null}</p>;
}

function Continue({ message }: { message: Message }): VNode {
  return (
    <button type="button" class="link" onClick={() => void continueAnswer(message, current.value.settings)}>{t("chat.continue")}</button>
  );
}

function Versions({ message }: { message: Message }): VNode | null {
  const versions = currentTree().versions(message);
  if (versions.length < 2) return null;
  const at = versions.indexOf(message.id);
  const show = (index: number) => void showLeaf(currentTree().leafBelow(versions[index]!));
  return (
    <span class="versions" role="group" aria-label={t("chat.versions")}>
      <IconButton name="left" label={t("chat.version-before")} disabled={at === 0} onClick={() => show(at - 1)} />
      <span aria-live="polite">{t("chat.version", at + 1, versions.length)}</span>
      <IconButton name="right" label={t("chat.version-after")} disabled={at === versions.length - 1} onClick={() => show(at + 1)} />
    </span>
  );
}

function Figures({ message }: { message: Message }): VNode | null {
  const { usage, timings, requestId } = message;
  if (!usage) return null;
  const parts = [t("chat.tokens", formatNumber(usage.prompt_tokens), formatNumber(usage.completion_tokens))];
  const cached = usage.prompt_tokens_details?.cached_tokens;
  if (cached) parts.push(t("chat.cached", formatNumber(cached)));
  if (timings?.predicted_per_second) parts.push(t("chat.rate", formatNumber(timings.predicted_per_second, 1)));
  const text = parts.join(" · ");
  if (!requestId) return <span class="figures">{text}</span>;
  return <a class="figures" href={`#/machine/${encodeURIComponent(requestId)}`} title={t("chat.explain")}>{text}</a>;
}

function Editor({ message, onClose }: { message: Message; onClose: () => void }): VNode {
  const [text, setText] = useState(message.content);
  const save = () => {
    onClose();
    void edit(message, text);
  };
  const onKey = (event: KeyboardEvent) => {
    if (event.key === "Escape") onClose();
    else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) save();
  };
  return (
    <div class="editor">
      <textarea dir="auto" aria-label={t("edit")} value={text} rows={Math.min(16, text.split("\n").length + 1)} autofocus onInput={(event) => setText(event.currentTarget.value)} onKeyDown={onKey} />
      <div class="buttons">
        <button type="button" onClick={onClose}>{t("cancel")}</button>
        <button type="button" class="primary" onClick={save}>{message.role === "user" ? t("chat.save-send") : t("save")}</button>
      </div>
    </div>
  );
}
