/** The page: its views, the way between them, and what concerns all of them. */
import { signal } from "@preact/signals";
import type { ComponentType, VNode } from "preact";
import { useEffect, useState } from "preact/hooks";
import { loginReason } from "./api/client";
import { connect, mayGenerate, me, readsKeys, readsMetrics, unreachable } from "./api/server";
import { ChatView, NEW, settingsOpen } from "./chat/view";
import { Login } from "./login";
import { ModelsView } from "./models/view";
import { Preferences } from "./preferences";
import { language, t, type TextKey } from "./text";
import { Dialog } from "./ui/dialog";
import { Icon, IconButton, type IconName } from "./ui/icon";
import { Notices } from "./ui/notice";
import { go, route } from "./ui/route";
import { Loading, lazy } from "./ui/lazy";

interface View {
  name: string;
  icon: IconName;
  shown: () => boolean;
  component: ComponentType;
}

const VIEWS: View[] = [
  { name: "chat", icon: "chat", shown: () => true, component: ChatView },
  { name: "compare", icon: "compare", shown: () => mayGenerate.value, component: lazy(() => import("./compare/view").then((m) => m.CompareView)) },
  { name: "models", icon: "models", shown: () => mayGenerate.value, component: ModelsView },
  { name: "machine", icon: "machine", shown: () => mayGenerate.value || readsMetrics.value || readsKeys.value, component: lazy(() => import("./machine/view").then((m) => m.MachineView)) },
  { name: "admin", icon: "admin", shown: () => readsKeys.value || mayGenerate.value, component: lazy(() => import("./admin/view").then((m) => m.AdminView)) },
  { name: "bench", icon: "bench", shown: () => mayGenerate.value, component: lazy(() => import("./bench/view").then((m) => m.BenchView)) },
];

const helpOpen = signal(false);

export function App(): VNode {
  const [ready, setReady] = useState(false);
  const [login, setLogin] = useState(false);
  useEffect(() => {
    void connect().then(() => setReady(true));
  }, []);
  const reason = loginReason.value;
  useEffect(() => {
    if (reason) setLogin(true);
  }, [reason]);
  useEffect(() => {
    document.documentElement.lang = language.value;
  }, [language.value]);
  useEffect(() => {
    addEventListener("keydown", onShortcut);
    return () => removeEventListener("keydown", onShortcut);
  }, []);
  useEffect(() => {
    if (!unreachable.value) return;
    const timer = setInterval(() => void connect(), 3000);
    return () => clearInterval(timer);
  }, [unreachable.value]);

  const closeLogin = () => {
    setLogin(false);
    loginReason.value = "";
  };
  const views = VIEWS.filter((view) => view.shown());
  const chosen = views.find((view) => view.name === route.value.view) ?? VIEWS[0]!;
  const Chosen = chosen.component;
  useEffect(() => {
    document.title = `${t(`nav.${chosen.name}` as TextKey)} · Tidemill`;
  }, [chosen, language.value]);
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), document.getElementById("main")?.focus())}>{t("skip")}</a>
      <nav class="rail" aria-label={t("nav")}>
        {views.map((view) => (
          <a key={view.name} href={`#/${view.name}`} class={view === chosen ? "current" : undefined} aria-current={view === chosen ? "page" : undefined}>
            <Icon name={view.icon} />
            <span>{t(`nav.${view.name}` as TextKey)}</span>
          </a>
        ))}
        <span class="grow" />
        {me.value?.keys ? <IconButton name="key" label={t("login.as", me.value.name)} onClick={() => setLogin(true)} /> : null}
        <IconButton name="more" label={t("preferences")} onClick={() => (helpOpen.value = true)} />
      </nav>
      <main id="main" tabIndex={-1}>
        {unreachable.value ? <p class="banner" role="alert">{t("error.unreachable")}</p> : null}
        {ready && me.value ? <Chosen /> : ready ? <Locked onLogin={() => setLogin(true)} /> : <Loading />}
      </main>
      {login ? <Login onClose={closeLogin} /> : null}
      {helpOpen.value ? (
        <Dialog title={t("preferences")} onClose={() => (helpOpen.value = false)}>
          <Preferences />
        </Dialog>
      ) : null}
      <Notices />
    </>
  );
}

function Locked({ onLogin }: { onLogin: () => void }): VNode {
  return (
    <div class="welcome">
      <h1>Tidemill</h1>
      {unreachable.value ? null : <button type="button" class="primary" onClick={onLogin}>{t("login")}</button>}
    </div>
  );
}

/** Keys that work everywhere; those of a letter do not while a person writes. */
function onShortcut(event: KeyboardEvent): void {
  const writing = event.target instanceof HTMLElement && /^(?:INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
  if (event.altKey && !event.ctrlKey && !event.metaKey) {
    const view = VIEWS.filter((one) => one.shown())[Number(event.code.replace("Digit", "")) - 1];
    if (view) go(view.name);
    else if (event.code === "KeyN") go("chat", NEW);
    else if (event.code === "KeyS") settingsOpen.value = !settingsOpen.value;
    else return;
    event.preventDefault();
  } else if (!writing && !event.ctrlKey && !event.metaKey && (event.key === "/" || event.key === "?")) {
    event.preventDefault();
    if (event.key === "?") helpOpen.value = true;
    else document.getElementById("composer")?.focus();
  }
}
