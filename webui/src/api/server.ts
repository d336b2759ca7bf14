/** What the page knows of the server and of the person: models, role. */
import { computed, signal } from "@preact/signals";
import { ApiError, apiKey, call, loginReason } from "./client";
import type { ModelCard, WhoAmI } from "./types";

export const models = signal<ModelCard[]>([]);
export const me = signal<WhoAmI | null>(null);
export const unreachable = signal(false);

const role = computed(() => me.value?.role ?? null);
export const isAdmin = computed(() => role.value === "admin");
export const managesKeys = computed(() => role.value === "admin" || role.value === "manager");
export const readsKeys = computed(() => managesKeys.value || role.value === "auditor");
export const mayGenerate = computed(() => managesKeys.value || role.value === "user");
export const readsMetrics = computed(() => isAdmin.value || role.value === "metrics");

/** Models that answer chats: those that are loaded and generate, and those of which nothing is known yet. */
export const chatModels = computed(() =>
  models.value.filter((card) => !card.loaded || !card.tasks || card.tasks.includes("generate")),
);

/** Ask the server who we are and what it serves; false where it wants a key first. */
export async function connect(): Promise<boolean> {
  try {
    me.value = await call<WhoAmI>("admin/whoami");
    loginReason.value = "";
    unreachable.value = false;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.status === 401) return false;
    if (error.status === 403) {
      // A key that may not call this route: the page is that of a user.
      me.value = { name: "", role: "user", keys: true, database: false, library: false, content: false, version: "" };
    } else {
      unreachable.value = error.status === 0;
      return false;
    }
  }
  if (mayGenerate.value) await refreshModels();
  return true;
}

export async function refreshModels(): Promise<void> {
  try {
    models.value = (await call<{ data: ModelCard[] }>("v1/models")).data;
    unreachable.value = false;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    unreachable.value = error.status === 0;
  }
}

/** A key that tells one person's data from another's, without being their API key. */
export async function ownerOf(): Promise<string> {
  return apiKey.value ? (me.value?.name ?? "") : "";
}
