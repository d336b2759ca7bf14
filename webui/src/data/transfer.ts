/** Conversations as files: JSON with every version, Markdown of the branch that is shown. */
import { all, messagesOf, put } from "./database";
import { newId } from "./ids";
import { loadList } from "./conversations";
import { noteMessages } from "./remote";
import { tellList } from "./tabs";
import { DEFAULT_SETTINGS, type Conversation, type Message } from "./types";

const FORMAT = "tidemill-conversations";

interface File_ {
  format: typeof FORMAT;
  version: 1;
  conversations: { conversation: Conversation; messages: Message[] }[];
}

export async function exportJson(ids?: string[]): Promise<string> {
  const chosen = (await all("conversations")).filter((one) => !ids || ids.includes(one.id));
  const found = [];
  for (const conversation of chosen) {
    found.push({ conversation, messages: await messagesOf(conversation.id) });
  }
  return JSON.stringify({ format: FORMAT, version: 1, conversations: found } satisfies File_, null, 1);
}

export function exportMarkdown(conversation: Conversation, messages: Message[]): string {
  const parts = [`# ${conversation.title || "Conversation"}`];
  if (conversation.settings.system) parts.push(`## System\n\n${conversation.settings.system}`);
  for (const message of messages) {
    const who = { user: "User", assistant: `Assistant${message.model ? ` (${message.model})` : ""}`, tool: "Tool" };
    const files = (message.attachments ?? []).map((file) => `**${file.name}**\n\n${fenced(file.text)}`);
    const calls = (message.calls ?? []).map((call) => fenced(`${call.name}(${call.arguments})`));
    const thinking = message.thinking ? [`<details><summary>Thinking</summary>\n\n${message.thinking}\n\n</details>`] : [];
    parts.push([`## ${who[message.role]}`, ...thinking, ...files, message.content, ...calls].filter(Boolean).join("\n\n"));
  }
  return `${parts.join("\n\n")}\n`;
}

function fenced(text: string): string {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
  const fence = "`".repeat(longest + 1);
  return `${fence}\n${text}\n${fence}`;
}

/**
 * Keep the conversations of a file beside those that exist; returns how many.
 *
 * @throws Error the file is none that `exportJson` wrote, with what is wrong.
 */
export async function importJson(text: string): Promise<number> {
  const file = JSON.parse(text) as Partial<File_>;
  if (file.format !== FORMAT || !Array.isArray(file.conversations)) {
    throw new Error(`"format" must be "${FORMAT}"`);
  }
  for (const { conversation, messages } of file.conversations) {
    const id = newId();
    const ids = new Map(messages.map((message) => [message.id, newId()]));
    const rows = messages.map((message, seq) => importedMessage(message, seq, id, ids));
    await put("messages", ...rows);
    noteMessages(id, rows);
    await put("conversations", {
      id,
      title: String(conversation.title ?? ""),
      created: Number(conversation.created) || Date.now(),
      updated: Number(conversation.updated) || Date.now(),
      leaf: ids.get(conversation.leaf ?? "") ?? rows.at(-1)?.id ?? null,
      settings: { ...DEFAULT_SETTINGS, ...conversation.settings },
    });
  }
  tellList();
  await loadList();
  return file.conversations.length;
}

function importedMessage(message: Message, seq: number, conversation: string, ids: Map<string, string>): Message {
  const role = (["user", "assistant", "tool"] as const).find((one) => one === message.role);
  if (!role || typeof message.content !== "string") throw new Error(`message ${seq + 1} has no role or content`);
  return {
    ...message,
    role,
    id: ids.get(message.id)!,
    parent: message.parent === null ? null : (ids.get(message.parent) ?? null),
    conversation,
    seq,
    state: message.state === "streaming" ? "interrupted" : message.state,
    resume: undefined,
  };
}

/** Have the browser save a text as a file. */
export function download(name: string, text: string, type: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name.replace(/[^\p{L}\p{N}._ -]+/gu, "_").slice(0, 80) || "file";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
