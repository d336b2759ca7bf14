/** The chat: conversations, messages, composer, settings. */
import { signal } from "@preact/signals";
import type { VNode } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { mayGenerate } from "../api/server";
import { branch, change, current, loadList, openConversation, startNew } from "../data/conversations";
import { t } from "../text";
import { IconButton } from "../ui/icon";
import { ModelSelect } from "../ui/model-select";
import { go, route } from "../ui/route";
import { Composer } from "./composer";
import { resumeStreams, streaming } from "./generate";
import { MessageView } from "./message";
import { SettingsPanel } from "./settings";
import { Sidebar } from "./sidebar";
import { modelInUse } from "./turn";

/** So many messages are shown at once; earlier ones come when they are scrolled to. */
const WINDOW = 40;

/** The address of a conversation that is yet to begin. */
export const NEW = "new";

export const listOpen = signal(false);
export const settingsOpen = signal(false);

export function ChatView(): VNode {
  const wanted = route.value.rest;
  const begun = useRef("");
  useEffect(() => {
    if (wanted === NEW) {
      startNew();
      begun.current = current.value.id;
    }
    void loadList().then(async () => {
      if (!wanted || wanted === NEW) return; // the one that is open goes on, or a new one has begun
      if (!(await openConversation(wanted))) await loadList(true); // it may be on the server
      if (await openConversation(wanted)) await resumeStreams();
      else go("chat", NEW);
    });
  }, [wanted]);
  useEffect(() => void loadList(true), []);
  // The first message of a new conversation gives it an address.
  const { id, leaf } = current.value;
  useEffect(() => {
    const { view, rest } = route.value;
    const unnamed = rest === "" || (rest === NEW && begun.current === id);
    if (leaf !== null && view === "chat" && unnamed) go("chat", id, true);
  }, [id, leaf, wanted]);
  return (
    <div class={`chat${listOpen.value ? " list-open" : ""}${settingsOpen.value ? " settings-open" : ""}`}>
      <Sidebar />
      <section class="conversation" aria-label={t("chat.conversation")}>
        <ChatHeader />
        <Messages key={id} />
        {mayGenerate.value ? <Composer key={`composer-${id}`} /> : <p class="hint center">{t("chat.may-not")}</p>}
      </section>
      {settingsOpen.value ? <SettingsPanel onClose={() => (settingsOpen.value = false)} /> : null}
    </div>
  );
}

function ChatHeader(): VNode {
  const model = modelInUse();
  const choose = (name: string) => void change({ settings: { ...current.value.settings, model: name } });
  return (
    <header class="bar">
      <IconButton name="menu" label={t("chat.list")} class="only-narrow" onClick={() => (listOpen.value = !listOpen.value)} />
      <label class="model">
        <span class="visually-hidden">{t("model")}</span>
        <ModelSelect value={model} onChange={choose} />
      </label>
      <h1 class="title" dir="auto">{current.value.title || t("chat.new")}</h1>
      <IconButton name="plus" label={t("chat.new")} onClick={() => go("chat", NEW)} />
      <IconButton name="settings" label={t("chat.settings")} pressed={settingsOpen.value} onClick={() => (settingsOpen.value = !settingsOpen.value)} />
    </header>
  );
}

function Messages(): VNode {
  const path = branch.value;
  const [shown, setShown] = useState(WINDOW);
  const box = useRef<HTMLDivElement>(null);
  const stuck = useRef(true);
  const first = Math.max(0, path.length - shown);

  const onScroll = () => {
    if (!box.current) return; // the conversation has been closed meanwhile
    const { scrollTop, scrollHeight, clientHeight } = box.current;
    stuck.current = scrollHeight - scrollTop - clientHeight < 60;
    if (scrollTop < 200 && first > 0) earlier();
  };
  const earlier = () => {
    const element = box.current!;
    const fromEnd = element.scrollHeight - element.scrollTop;
    setShown((count) => count + WINDOW);
    requestAnimationFrame(() => (element.scrollTop = element.scrollHeight - fromEnd));
  };
  const toEnd = () => {
    const element = box.current;
    if (element && stuck.current) element.scrollTop = element.scrollHeight;
  };
  useLayoutEffect(toEnd, [path]);
  useEffect(() => {
    // What is parsed in pieces or loaded late grows after it is drawn.
    const observer = new ResizeObserver(toEnd);
    if (box.current?.firstElementChild) observer.observe(box.current.firstElementChild);
    return () => observer.disconnect();
  }, []);
  const live = streaming.value;
  return (
    <div class="messages" ref={box} onScroll={onScroll} tabIndex={0} role="region" aria-label={t("chat.messages")}>
      <div class="column">
        {first > 0 ? (
          <button type="button" class="link center" onClick={earlier}>{t("chat.earlier", first)}</button>
        ) : null}
        {path.length === 0 ? <Welcome /> : null}
        {path.slice(first).map((message, index) => (
          <MessageView key={message.id} message={message} live={live.has(message.id)} last={first + index === path.length - 1} />
        ))}
      </div>
    </div>
  );
}

function Welcome(): VNode {
  return (
    <div class="welcome">
      <h2>{t("chat.welcome")}</h2>
      <p>{t("chat.welcome.keys")}</p>
    </div>
  );
}
