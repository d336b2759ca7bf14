/** Administration: keys, limits, usage, audit, batches; each for those who may. */
import type { ComponentType, VNode } from "preact";
import { isAdmin, me, mayGenerate, readsKeys } from "../api/server";
import { t, type TextKey } from "../text";
import { route } from "../ui/route";
import { AuditView } from "./audit";
import { BatchesView } from "./batches";
import { KeysView } from "./keys";
import { QuotasView } from "./quotas";
import { UsageView } from "./usage";

interface Tab {
  name: string;
  shown: () => boolean;
  component: ComponentType;
}

const audits = () => isAdmin.value || me.value?.role === "auditor";

const TABS: Tab[] = [
  { name: "keys", shown: () => readsKeys.value, component: KeysView },
  { name: "quotas", shown: () => readsKeys.value, component: QuotasView },
  { name: "usage", shown: () => readsKeys.value || mayGenerate.value, component: UsageView },
  { name: "audit", shown: audits, component: AuditView },
  { name: "batches", shown: () => mayGenerate.value, component: BatchesView },
];

export function AdminView(): VNode {
  const tabs = TABS.filter((tab) => tab.shown());
  const chosen = tabs.find((tab) => tab.name === route.value.rest) ?? tabs[0];
  const Chosen = chosen?.component;
  return (
    <section class="page" aria-label={t("nav.admin")}>
      <h1>{t("nav.admin")}</h1>
      <nav class="tabs" aria-label={t("nav.admin")}>
        {tabs.map((tab) => (
          <a key={tab.name} href={`#/admin/${tab.name}`} aria-current={tab === chosen ? "page" : undefined}>{t(`admin.${tab.name}` as TextKey)}</a>
        ))}
      </nav>
      {me.value?.database === false ? <p class="state">{t("admin.no-database")}</p> : Chosen ? <Chosen /> : null}
    </section>
  );
}
