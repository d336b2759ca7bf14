/** Two to four models or settings with one prompt, side by side, and votes on them. */
import type { VNode } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError } from "../api/client";
import { chatModels } from "../api/server";
import { openStream } from "../api/stream";
import type { ChatChunk } from "../api/types";
import { Answer } from "../chat/generate";
import { chatBody } from "../chat/request";
import { SettingsFields } from "../chat/settings";
import { all, put, remove } from "../data/database";
import { newId } from "../data/ids";
import { DEFAULT_SETTINGS, type Message, type Settings, type Vote } from "../data/types";
import { Markdown } from "../markdown/render";
import { formatNumber, t } from "../text";
import { Dialog } from "../ui/dialog";
import { IconButton } from "../ui/icon";
import { ModelSelect } from "../ui/model-select";
import { errorText, notifyError } from "../ui/notice";
import { standings } from "./standings";

const MOST = 4;

interface Side {
  id: string;
  settings: Settings;
  answer: Message | null;
  live: boolean;
}

const newSide = (): Side => ({ id: newId(), settings: { ...DEFAULT_SETTINGS }, answer: null, live: false });

export function CompareView(): VNode {
  const [sides, setSides] = useState<Side[]>(() => [newSide(), newSide()]);
  const [prompt, setPrompt] = useState("");
  const [votes, setVotes] = useState<Vote[]>([]);
  const [voted, setVoted] = useState(true);
  const aborts = useRef<(() => void)[]>([]);
  useEffect(() => void all("votes").then(setVotes), []);
  useEffect(() => () => stop(), []);
  const change = (id: string, values: Partial<Side>) => setSides((before) => before.map((side) => (side.id === id ? { ...side, ...values } : side)));
  const stop = () => {
    for (const abort of aborts.current.splice(0)) abort();
  };
  const run = async (event: Event) => {
    event.preventDefault();
    if (!prompt.trim()) return;
    stop();
    setVoted(false);
    await Promise.all(sides.map((side) => answerSide(side, prompt, (values) => change(side.id, values), aborts.current)));
  };
  const vote = async (winner: number) => {
    const row: Vote = { id: newId(), at: Date.now(), sides: sides.map(nameOf), winner };
    await put("votes", row);
    setVotes([...votes, row]);
    setVoted(true);
  };
  const busy = sides.some((side) => side.live);
  const ready = !busy && !voted && sides.every((side) => side.answer);
  const forget = async () => {
    await remove("votes", ...votes.map((one) => one.id));
    setVotes([]);
  };
  return (
    <section class="page compare" aria-label={t("nav.compare")}>
      <h1>{t("nav.compare")}</h1>
      <form onSubmit={run}>
        <label class="field"><span>{t("compare.prompt")}</span><textarea dir="auto" rows={3} value={prompt} onInput={(event) => setPrompt(event.currentTarget.value)} /></label>
        <div class="row">
          {busy ? <button type="button" onClick={stop}>{t("chat.stop")}</button> : <button type="submit" class="primary" disabled={!prompt.trim()}>{t("compare.run")}</button>}
          {sides.length < MOST ? <button type="button" onClick={() => setSides([...sides, newSide()])}>{t("compare.add")}</button> : null}
        </div>
      </form>
      <div class="sides">
        {sides.map((side, index) => (
          <SideView key={side.id} side={side} index={index} onChange={(values) => change(side.id, values)} onRemove={sides.length > 2 ? () => setSides(sides.filter((one) => one !== side)) : undefined} />
        ))}
      </div>
      {ready ? (
        <div class="votes" role="group" aria-label={t("compare.vote")}>
          <span>{t("compare.vote")}</span>
          {sides.map((side, index) => <button type="button" key={side.id} onClick={() => void vote(index)}>{t("compare.best", index + 1)}</button>)}
          <button type="button" onClick={() => void vote(-1)}>{t("compare.same")}</button>
          <button type="button" onClick={() => void vote(-2)}>{t("compare.bad")}</button>
        </div>
      ) : null}
      {votes.length ? <Standings votes={votes} onForget={forget} /> : null}
    </section>
  );
}

function nameOf(side: Side): string {
  const { model, system, parameters } = side.settings;
  const chosen = model || chatModels.value[0]?.id || "";
  const more = Object.entries(parameters).map(([name, value]) => `${name} ${value}`);
  return [chosen, ...more, ...(system ? [`“${system.slice(0, 30)}”`] : [])].join(", ");
}

async function answerSide(side: Side, prompt: string, change: (values: Partial<Side>) => void, aborts: (() => void)[]): Promise<void> {
  const user: Message = { id: "user", conversation: "", seq: 0, parent: null, role: "user", content: prompt, created: Date.now() };
  const answer = new Answer({ ...user, id: "answer", role: "assistant", content: "" });
  change({ live: true, answer: { ...answer.message } });
  let timer = 0;
  try {
    const body = chatBody([user], side.settings, side.settings.model || (chatModels.value[0]?.id ?? ""));
    const stream = openStream("v1/chat/completions", body, "", {
      onStart: (requestId) => answer.requested(requestId),
      onEvent: (data) => {
        answer.add(data as ChatChunk);
        timer ||= window.setTimeout(() => {
          timer = 0;
          change({ answer: { ...answer.message } });
        }, 40);
      },
    });
    aborts.push(stream.stop);
    await stream.done;
  } catch (error) {
    if (!(error instanceof DOMException)) {
      answer.message = { ...answer.message, error: errorText(error) };
      if (!(error instanceof ApiError)) notifyError(error);
    }
  }
  clearTimeout(timer);
  change({ live: false, answer: { ...answer.message } });
}

interface SideProps {
  side: Side;
  index: number;
  onChange: (values: Partial<Side>) => void;
  onRemove: (() => void) | undefined;
}

function SideView({ side, index, onChange, onRemove }: SideProps): VNode {
  const [open, setOpen] = useState(false);
  const { answer, settings } = side;
  const set = (values: Partial<Settings>) => onChange({ settings: { ...settings, ...values } });
  const figures = answer?.usage
    ? [t("chat.tokens", formatNumber(answer.usage.prompt_tokens), formatNumber(answer.usage.completion_tokens)), ...(answer.timings?.predicted_per_second ? [t("chat.rate", formatNumber(answer.timings.predicted_per_second, 1))] : [])].join(" · ")
    : "";
  return (
    <article class="side" aria-busy={side.live} aria-label={t("compare.side", index + 1)}>
      <header class="row">
        <strong>{index + 1}</strong>
        <ModelSelect label={t("model")} value={settings.model || (chatModels.value[0]?.id ?? "")} onChange={(model) => set({ model })} />
        <IconButton name="settings" label={t("compare.settings", index + 1)} onClick={() => setOpen(true)} />
        {onRemove ? <IconButton name="close" label={t("compare.remove", index + 1)} onClick={onRemove} /> : null}
      </header>
      {answer?.thinking ? <details class="thinking"><summary>{t("chat.thought")}</summary><div class="plain">{answer.thinking}</div></details> : null}
      {answer ? <Markdown text={answer.content} live={side.live} /> : null}
      {answer?.calls?.map((call, at) => <pre key={at} tabIndex={0}>{call.name} {call.arguments}</pre>)}
      {answer?.error ? <p class="state bad" role="alert">{answer.error}</p> : null}
      {figures ? <p class="figures">{figures}</p> : null}
      {open ? (
        <Dialog title={t("compare.settings", index + 1)} onClose={() => setOpen(false)}>
          <SettingsFields settings={settings} set={set} />
        </Dialog>
      ) : null}
    </article>
  );
}

function Standings({ votes, onForget }: { votes: Vote[]; onForget: () => Promise<void> }): VNode {
  const rows = standings(votes);
  return (
    <>
      <h2>{t("compare.standings", votes.length)}</h2>
      {rows.length ? null : <p class="hint">{t("compare.equal")}</p>}
      <div class="table" hidden={!rows.length} tabIndex={0} role="region" aria-label={t("compare.standings", votes.length)}>
        <table>
          <thead><tr><th>{t("compare.what")}</th><th class="align-right">{t("compare.duels")}</th><th class="align-right">{t("compare.won")}</th><th>{t("compare.interval")}</th></tr></thead>
          <tbody>
            {rows.map((row) => (
              <tr key={row.name}>
                <td dir="auto">{row.name}</td>
                <td class="align-right">{row.duels}</td>
                <td class="align-right">{formatNumber(row.share * 100, 1)} %</td>
                <td>
                  <svg class="interval" width="160" height="16" viewBox="0 0 160 16" role="img" aria-label={`${formatNumber(row.low * 100)} – ${formatNumber(row.high * 100)} %`}>
                    <line x1={row.low * 156 + 2} x2={row.high * 156 + 2} y1="8" y2="8" />
                    <circle cx={row.share * 156 + 2} cy="8" r="3.5" />
                  </svg>{" "}
                  <small>{formatNumber(row.low * 100)} – {formatNumber(row.high * 100)} %</small>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <button type="button" class="link" onClick={() => confirm(t("compare.forget.sure")) && void onForget()}>{t("compare.forget")}</button>
    </>
  );
}
