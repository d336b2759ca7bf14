/** Conversations on the server, for people who choose that: what changes here is sent, what changed there is fetched. */
import { signal } from "@preact/signals";
import { call } from "../api/client";
import { me } from "../api/server";
import * as database from "./database";
import { tellConversation } from "./tabs";
import type { Conversation, Message } from "./types";

const CHOSEN = "tidemill.remote";
const DELAY_MS = 800;
/** Characters of the messages of one request, as far as more than one has place. */
const AT_ONCE = 2_000_000;

/** The person wants conversations kept on the server. */
export const keepsRemotely = signal(localStorage.getItem(CHOSEN) === "yes");

const active = () => keepsRemotely.value && me.value?.content === true;

interface Changes {
  messages: Map<string, Message>;
  gone: Set<string>;
}

const pending = new Map<string, Changes>();
let timer = 0;
let sending: Promise<void> = Promise.resolve();

/** Choose; with `yes` what is in this browser is sent, too. */
export async function chooseRemote(yes: boolean): Promise<void> {
  keepsRemotely.value = yes;
  localStorage.setItem(CHOSEN, yes ? "yes" : "no");
  if (!active()) return;
  for (const conversation of await database.all("conversations")) {
    noteMessages(conversation.id, await database.messagesOf(conversation.id));
  }
}

export function noteMessages(conversation: string, messages: Message[], gone: string[] = []): void {
  if (!active()) return;
  const changes = pending.get(conversation) ?? { messages: new Map(), gone: new Set() };
  for (const message of messages) if (message.state !== "streaming") changes.messages.set(message.id, message);
  for (const id of gone) {
    changes.messages.delete(id);
    changes.gone.add(id);
  }
  pending.set(conversation, changes);
  timer ||= window.setTimeout(() => {
    timer = 0;
    sending = sending.then(send);
  }, DELAY_MS);
}

export async function removeRemotely(conversation: string): Promise<void> {
  pending.delete(conversation);
  if (active()) await call(`v1/chats/${conversation}`, { method: "DELETE" }).catch(() => undefined);
}

async function send(): Promise<void> {
  for (const [id, changes] of [...pending]) {
    pending.delete(id);
    const conversation = (await database.all("conversations")).find((one) => one.id === id);
    if (!conversation) continue;
    const messages = [...changes.messages.values()];
    try {
      const data = JSON.stringify(conversation);
      for (const [index, part] of parts(messages).entries()) {
        await call(`v1/chats/${id}`, { method: "PUT", body: { data, messages: part, gone: index ? [] : [...changes.gone] } });
      }
      await database.put("conversations", { ...conversation, remote: true });
    } catch {
      // The server has gone, or the key: it is sent with the next change of the conversation.
      pending.set(id, { messages: new Map([...changes.messages, ...(pending.get(id)?.messages ?? [])]), gone: changes.gone });
      return;
    }
  }
}

interface Sent {
  id: string;
  number: number;
  data: string;
}

/** Messages as requests send them; one at least, for the conversation itself. */
function parts(messages: Message[]): Sent[][] {
  const found: Sent[][] = [[]];
  let size = 0;
  for (const message of messages) {
    const data = JSON.stringify(message);
    if (size && size + data.length > AT_ONCE) {
      found.push([]);
      size = 0;
    }
    size += data.length;
    found.at(-1)!.push({ id: message.id, number: message.seq, data });
  }
  return found;
}

/** Fetch what is newer on the server, and forget what was deleted there; returns ids of what was newer. */
export async function fetchRemote(): Promise<string[]> {
  if (!active()) return [];
  const newer: string[] = [];
  const { chats } = await call<{ chats: { id: string; data: string }[] }>("v1/chats");
  const local = new Map((await database.all("conversations")).map((one) => [one.id, one]));
  for (const chat of chats) {
    const remote = JSON.parse(chat.data) as Conversation;
    const mine = local.get(chat.id);
    if (mine && mine.updated >= remote.updated) continue;
    const { messages } = await call<{ messages: { data: string }[] }>(`v1/chats/${chat.id}`);
    await database.put("messages", ...messages.map((one) => JSON.parse(one.data) as Message));
    await database.put("conversations", { ...remote, remote: true });
    tellConversation(chat.id);
    newer.push(chat.id);
  }
  const there = new Set(chats.map((chat) => chat.id));
  for (const one of local.values()) {
    if (one.remote && !there.has(one.id) && !pending.has(one.id)) await database.removeConversation(one.id);
  }
  return newer;
}
