/** The messages of a conversation as a tree of versions, and the branch of it that is shown. */
import type { Message } from "./types";

export class Tree {
  private readonly byId = new Map<string, Message>();
  private readonly children = new Map<string | null, string[]>();

  constructor(messages: Iterable<Message> = []) {
    for (const message of messages) this.set(message);
  }

  get size(): number {
    return this.byId.size;
  }

  get(id: string | null): Message | undefined {
    return id === null ? undefined : this.byId.get(id);
  }

  /** Add a message, or replace it by a newer state of itself. */
  set(message: Message): void {
    if (!this.byId.has(message.id)) {
      const siblings = this.children.get(message.parent);
      if (siblings) siblings.push(message.id);
      else this.children.set(message.parent, [message.id]);
    }
    this.byId.set(message.id, message);
  }

  nextSeq(): number {
    let last = -1;
    for (const message of this.byId.values()) last = Math.max(last, message.seq);
    return last + 1;
  }

  /** The messages from the first one to `leaf`. */
  path(leaf: string | null): Message[] {
    const found: Message[] = [];
    for (let message = this.get(leaf); message; message = this.get(message.parent)) found.push(message);
    return found.reverse();
  }

  /** Ids of a message's versions, itself included, oldest first. */
  versions(message: Message): string[] {
    return this.children.get(message.parent) ?? [message.id];
  }

  /** The newest leaf below a message. */
  leafBelow(id: string): string {
    for (;;) {
      const next = this.children.get(id)?.at(-1);
      if (next === undefined) return id;
      id = next;
    }
  }

  /** Remove a message with all that follows it; returns their ids. */
  removeBelow(id: string): string[] {
    const removed = [id];
    for (const one of removed) removed.push(...(this.children.get(one) ?? []));
    const parent = this.byId.get(id)?.parent ?? null;
    const siblings = (this.children.get(parent) ?? []).filter((other) => other !== id);
    this.children.set(parent, siblings);
    for (const one of removed) {
      this.byId.delete(one);
      this.children.delete(one);
    }
    return removed;
  }

  all(): Message[] {
    return [...this.byId.values()].sort((a, b) => a.seq - b.seq);
  }
}
