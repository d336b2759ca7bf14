/** Where a person writes. Enter sends, Shift+Enter begins a line, Escape stops. */
import type { VNode } from "preact";
import { useRef, useState } from "preact/hooks";
import { branch, current } from "../data/conversations";
import type { Attachment } from "../data/types";
import { t } from "../text";
import { IconButton } from "../ui/icon";
import { notify } from "../ui/notice";
import { stop, streaming } from "./generate";
import { send } from "./turn";

const MAX_FILE = 1024 * 1024;

export function Composer(): VNode {
  // What is being written outlives a reload of the tab.
  const key = `tidemill.draft.${current.value.leaf === null ? "new" : current.value.id}`;
  const [text, setDraft] = useState(() => sessionStorage.getItem(key) ?? "");
  const setText = (value: string) => {
    setDraft(value);
    if (value) sessionStorage.setItem(key, value);
    else sessionStorage.removeItem(key);
  };
  const [files, setFiles] = useState<Attachment[]>([]);
  const picker = useRef<HTMLInputElement>(null);
  const live = branch.value.filter((message) => streaming.value.has(message.id));

  const submit = () => {
    if (live.length || (!text.trim() && !files.length)) return;
    const [sent, attached] = [text, files];
    setText("");
    setFiles([]);
    void send(sent, attached);
  };
  const onKey = (event: KeyboardEvent) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      submit();
    } else if (event.key === "Escape") live.forEach((message) => stop(message.id));
  };
  const attach = async (list: FileList | null) => {
    for (const file of list ?? []) {
      if (file.size > MAX_FILE) notify(t("attach.large", file.name), true);
      else {
        const content = await file.text();
        if (content.includes("\0")) notify(t("attach.binary", file.name), true);
        else setFiles((before) => [...before, { name: file.name, text: content }]);
      }
    }
    if (picker.current) picker.current.value = "";
  };
  const drop = (event: DragEvent) => {
    if (!event.dataTransfer?.files.length) return;
    event.preventDefault();
    void attach(event.dataTransfer.files);
  };
  return (
    <form class="composer" onSubmit={(event) => (event.preventDefault(), submit())} onDrop={drop} onDragOver={(event) => event.preventDefault()}>
      {files.length ? (
        <ul class="files" aria-label={t("attach.files")}>
          {files.map((file, index) => (
            <li key={index}>
              <span dir="auto">{file.name}</span>
              <IconButton name="close" label={t("attach.remove", file.name)} onClick={() => setFiles(files.filter((_, other) => other !== index))} />
            </li>
          ))}
        </ul>
      ) : null}
      <div class="composer-row">
        <IconButton name="attach" label={t("attach")} onClick={() => picker.current?.click()} />
        <input ref={picker} type="file" multiple hidden onChange={(event) => void attach(event.currentTarget.files)} aria-label={t("attach")} />
        <textarea
          id="composer"
          dir="auto"
          rows={Math.min(10, Math.max(1, text.split("\n").length))}
          value={text}
          placeholder={t("chat.placeholder")}
          aria-label={t("chat.placeholder")}
          onInput={(event) => setText(event.currentTarget.value)}
          onKeyDown={onKey}
          autofocus={current.value.leaf === null}
        />
        {live.length ? (
          <IconButton name="stop" label={t("chat.stop")} class="primary" onClick={() => live.forEach((message) => stop(message.id))} />
        ) : (
          <button type="submit" class="icon primary" title={t("chat.send")} aria-label={t("chat.send")} disabled={!text.trim() && !files.length}>
            <svg class="svg" viewBox="0 0 24 24" aria-hidden="true"><path d="M12 20V5M5 12l7-7 7 7" /></svg>
          </button>
        )}
      </div>
    </form>
  );
}
