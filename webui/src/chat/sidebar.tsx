/** The list of conversations: search, names, export and import. */
import type { VNode } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { branch, conversations, current, deleteConversation, saveConversation } from "../data/conversations";
import { search } from "../data/database";
import { download, exportJson, exportMarkdown, importJson } from "../data/transfer";
import type { Conversation } from "../data/types";
import { formatTime, t } from "../text";
import { Dialog } from "../ui/dialog";
import { Icon, IconButton } from "../ui/icon";
import { notify, notifyError } from "../ui/notice";
import { go } from "../ui/route";
import { NEW, listOpen } from "./view";

const SHOWN = 100;

export function Sidebar(): VNode {
  const [query, setQuery] = useState("");
  const [found, setFound] = useState<Map<string, string> | null>(null);
  const [shown, setShown] = useState(SHOWN);
  const [renaming, setRenaming] = useState<Conversation | null>(null);
  useEffect(() => {
    const text = query.trim();
    if (!text) {
      setFound(null);
      return;
    }
    const timer = setTimeout(() => void search(text).then(setFound), 200);
    return () => clearTimeout(timer);
  }, [query]);
  const wanted = query.trim().toLocaleLowerCase();
  const list = found
    ? conversations.value.filter((one) => found.has(one.id) || one.title.toLocaleLowerCase().includes(wanted))
    : conversations.value;
  return (
    <nav class="sidebar" aria-label={t("chat.list")}>
      <button type="button" class="wide" onClick={() => (go("chat", NEW), (listOpen.value = false))}>
        <Icon name="plus" /> {t("chat.new")}
      </button>
      <label class="search">
        <Icon name="search" />
        <input type="search" value={query} placeholder={t("chat.search")} aria-label={t("chat.search")} onInput={(event) => setQuery(event.currentTarget.value)} />
      </label>
      <ul class="conversations">
        {list.slice(0, shown).map((one) => (
          <li key={one.id} class={one.id === current.value.id ? "current" : undefined}>
            <a href={`#/chat/${one.id}`} aria-current={one.id === current.value.id ? "page" : undefined} title={formatTime(one.updated)} dir="auto" onClick={() => (listOpen.value = false)}>
              {one.title || t("chat.untitled")}
              {found?.get(one.id) ? <small dir="auto">{found.get(one.id)}</small> : null}
            </a>
            <IconButton name="edit" label={t("chat.rename", one.title)} onClick={() => setRenaming(one)} />
            <IconButton name="trash" label={t("chat.delete", one.title)} onClick={() => void removeConversation(one)} />
          </li>
        ))}
      </ul>
      {list.length === 0 ? <p class="hint">{found ? t("chat.nothing-found") : t("chat.none")}</p> : null}
      {list.length > shown ? <button type="button" class="link" onClick={() => setShown(shown + SHOWN)}>{t("more")}</button> : null}
      <Files />
      {renaming ? <Rename conversation={renaming} onClose={() => setRenaming(null)} /> : null}
    </nav>
  );
}

async function removeConversation(one: Conversation): Promise<void> {
  if (!confirm(t("chat.delete.sure", one.title))) return;
  await deleteConversation(one.id);
  if (location.hash.endsWith(one.id)) go("chat", NEW);
}

function Rename({ conversation, onClose }: { conversation: Conversation; onClose: () => void }): VNode {
  const [title, setTitle] = useState(conversation.title);
  const save = (event: Event) => {
    event.preventDefault();
    const next = { ...conversation, title };
    if (current.value.id === conversation.id) current.value = { ...current.value, title };
    void saveConversation(next);
    onClose();
  };
  return (
    <Dialog title={t("chat.rename", conversation.title)} onClose={onClose}>
      <form onSubmit={save}>
        <input value={title} dir="auto" aria-label={t("chat.title")} maxLength={200} autofocus onInput={(event) => setTitle(event.currentTarget.value)} />
        <div class="buttons"><button type="submit" class="primary">{t("save")}</button></div>
      </form>
    </Dialog>
  );
}

function Files(): VNode {
  const picker = useRef<HTMLInputElement>(null);
  const { id, title } = current.value;
  const load = async (file: File | undefined) => {
    if (!file) return;
    try {
      notify(t("import.done", await importJson(await file.text())));
    } catch (error) {
      notifyError(new Error(t("import.failed", error instanceof Error ? error.message : String(error))));
    }
    if (picker.current) picker.current.value = "";
  };
  const json = async (ids?: string[]) => download(`${ids ? title : "tidemill"}.json`, await exportJson(ids), "application/json");
  const markdown = () => download(`${title}.md`, exportMarkdown(current.value, branch.value), "text/markdown");
  return (
    <details class="files-menu">
      <summary>{t("chat.files")}</summary>
      <button type="button" onClick={() => void json([id])}>{t("export.json")}</button>
      <button type="button" onClick={markdown}>{t("export.markdown")}</button>
      <button type="button" onClick={() => void json()}>{t("export.all")}</button>
      <button type="button" onClick={() => picker.current?.click()}>{t("import")}</button>
      <input ref={picker} type="file" accept=".json,application/json" hidden aria-label={t("import")} onChange={(event) => void load(event.currentTarget.files?.[0])} />
    </details>
  );
}
