/** Code with its language, a button to copy it, and colours once the highlighter has been loaded. */
import type { ComponentChildren, VNode } from "preact";
import { useEffect, useState } from "preact/hooks";
import { t } from "../text";
import { CopyButton } from "../ui/copy";

/** Longer code has no colours: finding them would take long. */
const MAX_LENGTH = 40_000;

interface Scope {
  scope?: string;
  children: (Scope | string)[];
}

type Highlight = (text: string, language: string) => Scope | null;

let highlighter: Promise<Highlight> | undefined;

function load(): Promise<Highlight> {
  highlighter ??= import("./highlighter").then((module) => module.highlight);
  return highlighter;
}

interface Props {
  text: string;
  language: string;
  /** It is still being written. */
  open?: boolean;
}

export function CodeBlock({ text, language, open = false }: Props): VNode {
  const name = language.trim().split(/[\s{,]/)[0]!.toLowerCase();
  const [colours, setColours] = useState<{ text: string; scope: Scope | null } | null>(null);
  useEffect(() => {
    if (open || !name || text.length > MAX_LENGTH) return;
    let current = true;
    void load().then((highlight) => {
      if (current) setColours({ text, scope: highlight(text, name) });
    });
    return () => {
      current = false;
    };
  }, [text, name, open]);
  const scope = colours?.text === text ? colours.scope : null;
  return (
    <figure class="code" dir="ltr">
      <figcaption>
        <span>{name}</span>
        <CopyButton text={text} />
      </figcaption>
      <pre tabIndex={0} aria-label={t("md.code", name)}>
        <code>{scope ? scope.children.map(coloured) : text}</code>
      </pre>
    </figure>
  );
}

function coloured(node: Scope | string): ComponentChildren {
  if (typeof node === "string") return node;
  const kind = node.scope?.split(".")[0]?.replace(/[^a-z-]/g, "");
  return <span class={kind ? `hl-${kind}` : undefined}>{node.children.map(coloured)}</span>;
}
