/** Tokens coloured by their probability, each with its alternatives. */
import type { VNode } from "preact";
import { useState } from "preact/hooks";
import type { TokenLogprob } from "../api/types";
import { formatNumber, t } from "../text";

export function Probabilities({ tokens }: { tokens: TokenLogprob[] }): VNode {
  const [at, setAt] = useState(0);
  const move = (event: KeyboardEvent) => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!step) return;
    event.preventDefault();
    setAt(Math.min(tokens.length - 1, Math.max(0, at + step)));
  };
  const over = (event: MouseEvent) => {
    const index = (event.target as HTMLElement).dataset["index"];
    if (index) setAt(Number(index));
  };
  const chosen = tokens[at];
  return (
    <div class="probabilities">
      <div class="tokens" dir="auto" tabIndex={0} role="application" aria-label={t("chat.probabilities.help")} onKeyDown={move} onMouseOver={over}>
        {tokens.map((token, index) => (
          <span key={index} data-index={index} class={`p${level(token.logprob)}${index === at ? " chosen" : ""}`}>{token.token}</span>
        ))}
      </div>
      {chosen ? (
        <table class="alternatives" aria-live="polite">
          <caption>{t("chat.alternatives", at + 1, tokens.length)}</caption>
          <tbody>
            {alternatives(chosen).map((one, index) => (
              <tr key={index} class={one.token === chosen.token ? "chosen" : undefined}>
                <td><code>{visible(one.token)}</code></td>
                <td>{percent(one.logprob)}</td>
                <td><progress max={1} value={Math.exp(one.logprob)} aria-label={percent(one.logprob)} /></td>
              </tr>
            ))}
          </tbody>
        </table>
      ) : null}
    </div>
  );
}

function alternatives(token: TokenLogprob) {
  const others = token.top_logprobs ?? [];
  return others.some((one) => one.token === token.token) ? others : [token, ...others];
}

/** 0 (unlikely) to 4 (nearly certain). */
function level(logprob: number): number {
  const probability = Math.exp(logprob);
  return [0.2, 0.5, 0.8, 0.97].filter((bound) => probability >= bound).length;
}

function percent(logprob: number): string {
  return `${formatNumber(Math.exp(logprob) * 100, 2)} %`;
}

function visible(token: string): string {
  return token.replace(/ /g, "␣").replace(/\n/g, "↵").replace(/\t/g, "⇥");
}
