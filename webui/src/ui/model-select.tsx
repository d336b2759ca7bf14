/** The choice of a model; an adapter is one, of its base. */
import type { VNode } from "preact";
import { chatModels } from "../api/server";
import type { ModelCard } from "../api/types";
import { t } from "../text";

interface Props {
  value: string;
  onChange: (model: string) => void;
  label?: string;
}

export function ModelSelect({ value, onChange, label }: Props): VNode {
  const cards = chatModels.value;
  return (
    <select class="grow" aria-label={label} value={value} onChange={(event) => onChange(event.currentTarget.value)}>
      {cards.length === 0 ? <option value="">{t("chat.no-models")}</option> : null}
      {cards.map((card) => <option key={card.id} value={card.id}>{nameOf(card)}</option>)}
    </select>
  );
}

function nameOf(card: ModelCard): string {
  if (card.parent) return t("model.adapter", card.id, card.parent);
  return card.loaded ? card.id : `${card.id} (${t("models.not-loaded")})`;
}
