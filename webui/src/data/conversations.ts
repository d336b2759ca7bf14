/** The conversations of this browser, and the one that is open. */
import { batch, computed, signal } from "@preact/signals";
import * as database from "./database";
import { newId } from "./ids";
import { fetchRemote, noteMessages, removeRemotely } from "./remote";
import { listen, tellConversation, tellList } from "./tabs";
import { Tree } from "./tree";
import { DEFAULT_SETTINGS, type Conversation, type Message, type Settings } from "./types";

/** All conversations, the one that changed last first. */
export const conversations = signal<Conversation[]>([]);

/** The open one; one that is not in the list yet is written with its first message. */
export const current = signal<Conversation>(draft());

/** Counts changes of the open conversation's tree, which is changed in place. */
const changes = signal(0);
let tree = new Tree();

/** The messages that are shown. */
export const branch = computed(() => {
  void changes.value;
  return tree.path(current.value.leaf);
});

export function currentTree(): Tree {
  return tree;
}

/** A new conversation with settings of the last one. */
export function draft(settings: Settings = DEFAULT_SETTINGS): Conversation {
  const now = Date.now();
  return { id: newId(), title: "", created: now, updated: now, leaf: null, settings: { ...settings } };
}

export async function loadList(remote = false): Promise<void> {
  // Without the server there is what this browser has.
  const newer = remote ? await fetchRemote().catch(() => []) : [];
  const rows = await database.all("conversations");
  conversations.value = rows.sort((a, b) => b.updated - a.updated);
  for (const id of newer) await refresh(id);
}

export function startNew(): void {
  batch(() => {
    tree = new Tree();
    current.value = draft(current.value.settings);
    changes.value += 1;
  });
}

/** Open a conversation; false if there is none of that id. */
export async function openConversation(id: string): Promise<boolean> {
  if (current.value.id === id) return true;
  const found = conversations.value.find((one) => one.id === id);
  if (!found) return false;
  const messages = await database.messagesOf(id);
  batch(() => {
    tree = new Tree(messages);
    current.value = found;
    changes.value += 1;
  });
  return true;
}

/** Change the open conversation; `touch` moves it to the top of the list. */
export async function change(values: Partial<Conversation>, touch = false): Promise<void> {
  const next = { ...current.value, ...values };
  if (touch) next.updated = Date.now();
  current.value = next;
  if (tree.size) await saveConversation(next);
}

export async function saveConversation(conversation: Conversation): Promise<void> {
  const others = conversations.value.filter((one) => one.id !== conversation.id);
  conversations.value = [...others, conversation].sort((a, b) => b.updated - a.updated);
  await database.put("conversations", conversation);
  noteMessages(conversation.id, []);
  tellList();
}

/** A message of the open conversation, not written yet. */
export function makeMessage(values: Partial<Message> & Pick<Message, "role" | "content" | "parent">): Message {
  return {
    id: newId(),
    conversation: current.value.id,
    seq: tree.nextSeq(),
    created: Date.now(),
    ...values,
  };
}

/** Show a message as the end of the open conversation, and keep it. */
export async function append(message: Message): Promise<void> {
  const first = tree.size === 0;
  batch(() => {
    tree.set(message);
    changes.value += 1;
    const title = first ? titleOf(message) : current.value.title;
    current.value = { ...current.value, leaf: message.id, title, updated: Date.now() };
  });
  await database.put("messages", message);
  noteMessages(message.conversation, [message]);
  await saveConversation(current.value);
}

/** A newer state of a message; shown if its conversation is open, and kept unless `keep` is false. */
export function update(message: Message, keep = true): void {
  if (message.conversation === current.value.id && tree.get(message.id)) {
    tree.set(message);
    changes.value += 1;
  }
  if (keep) {
    noteMessages(message.conversation, [message]);
    void database.put("messages", message).then(() => tellConversation(message.conversation));
  }
}

export async function showLeaf(id: string | null): Promise<void> {
  await change({ leaf: id });
}

/** Remove a message of the open conversation with all that follows it. */
export async function removeMessage(message: Message): Promise<void> {
  const siblings = tree.versions(message).filter((id) => id !== message.id);
  const removed = tree.removeBelow(message.id);
  const next = siblings.length ? tree.leafBelow(siblings.at(-1)!) : message.parent;
  batch(() => {
    changes.value += 1;
    current.value = { ...current.value, leaf: next };
  });
  await database.remove("messages", ...removed);
  noteMessages(current.value.id, [], removed);
  await saveConversation(current.value);
}

export async function deleteConversation(id: string): Promise<void> {
  if (current.value.id === id) startNew();
  conversations.value = conversations.value.filter((one) => one.id !== id);
  await database.removeConversation(id);
  await removeRemotely(id);
  tellList();
}

/** Copy messages into a conversation of their own, and open it. */
export async function keepAs(title: string, settings: Settings, messages: Message[], leaf: string | null): Promise<void> {
  const conversation = { ...draft(settings), title };
  const ids = new Map(messages.map((message) => [message.id, newId()]));
  const rows = messages.map((message, seq) => ({
    ...message,
    id: ids.get(message.id)!,
    parent: message.parent === null ? null : (ids.get(message.parent) ?? null),
    conversation: conversation.id,
    seq,
    state: message.state === "streaming" ? ("interrupted" as const) : message.state,
    resume: undefined,
  }));
  conversation.leaf = leaf === null ? null : (ids.get(leaf) ?? null);
  await database.put("messages", ...rows);
  noteMessages(conversation.id, rows);
  await saveConversation(conversation);
  await openConversation(conversation.id);
}

function titleOf(message: Message): string {
  const line = message.content.trim().split("\n")[0] ?? "";
  const name = line || message.attachments?.[0]?.name || "";
  return [...name].slice(0, 60).join("");
}

listen({ list: () => void loadList(), conversation: refresh });

/** The open conversation as it is in the database now, where another tab or the server has changed it. */
async function refresh(id: string): Promise<void> {
  if (id !== current.value.id) return;
  await loadList();
  const messages = await database.messagesOf(id);
  const found = conversations.value.find((one) => one.id === id);
  if (id !== current.value.id) return;
  batch(() => {
    // What this tab streams is newer than what is written.
    const mine = tree.all().filter((message) => streamingHere(message.id));
    tree = new Tree(messages);
    for (const message of mine) tree.set(message);
    const leaf = tree.get(current.value.leaf) ? current.value.leaf : (found?.leaf ?? null);
    const grown = leaf === null ? leaf : tree.leafBelow(leaf);
    current.value = { ...(found ?? current.value), leaf: grown };
    changes.value += 1;
  });
}

let streamingHere: (id: string) => boolean = () => false;

/** Tell which messages this tab is streaming. */
export function onStreaming(is: (id: string) => boolean): void {
  streamingHere = is;
}
