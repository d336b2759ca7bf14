/** The browser's database: conversations, messages, presets and votes. */
import type { Conversation, Message, Preset, Vote } from "./types";

const NAME = "tidemill";
const VERSION = 1;

interface Stores {
  conversations: Conversation;
  messages: Message;
  presets: Preset;
  votes: Vote;
}
export type StoreName = keyof Stores;

let opened: Promise<IDBDatabase> | undefined;

function open(): Promise<IDBDatabase> {
  opened ??= new Promise((resolve, reject) => {
    const asked = indexedDB.open(NAME, VERSION);
    asked.onupgradeneeded = () => {
      const database = asked.result;
      database.createObjectStore("conversations", { keyPath: "id" });
      database.createObjectStore("messages", { keyPath: "id" }).createIndex("conversation", "conversation");
      database.createObjectStore("presets", { keyPath: "name" });
      database.createObjectStore("votes", { keyPath: "id" });
    };
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = () => reject(asked.error);
  });
  return opened;
}

function ended(transaction: IDBTransaction): Promise<void> {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = transaction.onerror = () => reject(transaction.error);
  });
}

function result<T>(asked: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = () => reject(asked.error);
  });
}

export async function put<N extends StoreName>(store: N, ...rows: Stores[N][]): Promise<void> {
  const transaction = (await open()).transaction(store, "readwrite");
  for (const row of rows) transaction.objectStore(store).put(row);
  await ended(transaction);
}

export async function remove(store: StoreName, ...keys: string[]): Promise<void> {
  const transaction = (await open()).transaction(store, "readwrite");
  for (const key of keys) transaction.objectStore(store).delete(key);
  await ended(transaction);
}

export async function all<N extends StoreName>(store: N): Promise<Stores[N][]> {
  return result((await open()).transaction(store).objectStore(store).getAll() as IDBRequest<Stores[N][]>);
}

export async function messagesOf(conversation: string): Promise<Message[]> {
  const index = (await open()).transaction("messages").objectStore("messages").index("conversation");
  const rows = await result(index.getAll(conversation) as IDBRequest<Message[]>);
  return rows.sort((a, b) => a.seq - b.seq);
}

export async function removeConversation(id: string): Promise<void> {
  const transaction = (await open()).transaction(["conversations", "messages"], "readwrite");
  transaction.objectStore("conversations").delete(id);
  const messages = transaction.objectStore("messages");
  for (const key of await result(messages.index("conversation").getAllKeys(id))) messages.delete(key);
  await ended(transaction);
}

/** Conversations that have a message with a text, and the first such place; at most `most`. */
export async function search(text: string, most = 200): Promise<Map<string, string>> {
  const wanted = text.toLocaleLowerCase();
  const found = new Map<string, string>();
  const store = (await open()).transaction("messages").objectStore("messages");
  await new Promise<void>((resolve, reject) => {
    const asked = store.openCursor();
    asked.onerror = () => reject(asked.error);
    asked.onsuccess = () => {
      const cursor = asked.result;
      if (!cursor || found.size >= most) return resolve();
      const row = cursor.value as Message;
      const at = found.has(row.conversation) ? -1 : row.content.toLocaleLowerCase().indexOf(wanted);
      if (at >= 0) found.set(row.conversation, excerpt(row.content, at, text.length));
      cursor.continue();
    };
  });
  return found;
}

function excerpt(text: string, at: number, length: number): string {
  const start = Math.max(0, at - 24);
  return `${start ? "…" : ""}${text.slice(start, at + length + 40).replace(/\s+/g, " ")}`;
}
