/**
 * Markdown as elements. No text becomes markup: every element is made here, by the type of a token, so
 * that nothing that a model writes can add a script, a handler or a style.
 */
import type { ComponentChildren, JSX, VNode } from "preact";
import { Component } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Tokens } from "marked";
import { t } from "../text";
import { Blocks, PIECE, type Token } from "./blocks";
import { CodeBlock } from "./code";
import { MathText } from "./math";

const MAX_DEPTH = 24;
const MAX_ROWS = 200;
const SAFE_LINK = /^(?:https?:|mailto:)/i;
const SAFE_IMAGE = /^data:image\/(?:png|jpeg|gif|webp);base64,[a-z0-9+/=]+$/i;

/** A text in Markdown. A long one is parsed and shown in pieces, a frame each. */
export function Markdown({ text, live = false }: { text: string; live?: boolean }): JSX.Element {
  const blocks = useRef<Blocks | null>(null);
  blocks.current ??= new Blocks();
  const [shown, setShown] = useState(PIECE);
  const behind = shown < text.length;
  useEffect(() => {
    if (!behind) return;
    const timer = setTimeout(() => setShown((before) => before + PIECE), 0);
    return () => clearTimeout(timer);
  }, [behind, shown]);
  const found = blocks.current.update(behind ? text.slice(0, shown) : text);
  return (
    <div class="markdown" dir="auto">
      {found.map(({ token }, index) => (
        <BlockView key={index} token={token} open={(live || behind) && index === found.length - 1} />
      ))}
    </div>
  );
}

interface BlockProps {
  token: Token;
  open: boolean;
}

/** A block, which is made again only when its source has changed. */
class BlockView extends Component<BlockProps> {
  override shouldComponentUpdate(next: BlockProps): boolean {
    return next.token.raw !== this.props.token.raw || next.token.type !== this.props.token.type || next.open !== this.props.open;
  }

  override render(): ComponentChildren {
    return block(this.props.token, 0, this.props.open);
  }
}

function block(token: Token, depth: number, open = false): ComponentChildren {
  if (depth > MAX_DEPTH) return token.raw;
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading":
      return heading(token as Tokens.Heading, depth);
    case "paragraph":
      return <p dir="auto">{inline((token as Tokens.Paragraph).tokens, depth + 1)}</p>;
    case "text": {
      const { tokens, text } = token as Tokens.Text;
      return tokens ? inline(tokens, depth + 1) : text;
    }
    case "code": {
      const { text, lang } = token as Tokens.Code;
      return <CodeBlock text={text} language={lang ?? ""} open={open} />;
    }
    case "blockquote":
      return <blockquote>{(token as Tokens.Blockquote).tokens.map((one) => block(one, depth + 1))}</blockquote>;
    case "list":
      return list(token as Tokens.List, depth);
    case "table":
      return <Table token={token as Tokens.Table} depth={depth} />;
    case "hr":
      return <hr />;
    case "math":
      return mathOf(token);
    case "plain":
    case "html":
      return <p class="plain">{token.raw}</p>;
    default:
      return <p class="plain">{token.raw}</p>;
  }
}

function heading(token: Tokens.Heading, depth: number): VNode {
  // The page has headings of its own above those of an answer.
  const Tag = `h${Math.min(6, token.depth + 2)}` as "h3";
  return <Tag dir="auto" class={`level-${token.depth}`}>{inline(token.tokens, depth + 1)}</Tag>;
}

function list(token: Tokens.List, depth: number): VNode {
  const items = token.items.map((item, index) => (
    <li key={index} dir="auto" class={item.task ? "task" : undefined}>
      {item.task ? <input type="checkbox" checked={item.checked ?? false} disabled aria-label={t("md.task")} /> : null}
      {item.tokens.filter((one) => one.type !== "checkbox").map((one) => block(one, depth + 1))}
    </li>
  ));
  if (!token.ordered) return <ul>{items}</ul>;
  const start = Number(token.start);
  return <ol start={Number.isSafeInteger(start) && start < 1e9 ? start : 1}>{items}</ol>;
}

function Table({ token, depth }: { token: Tokens.Table; depth: number }): VNode {
  const [all, setAll] = useState(false);
  const align = (index: number) => {
    const side = token.align[index];
    return side ? `align-${side}` : undefined;
  };
  const rows = all ? token.rows : token.rows.slice(0, MAX_ROWS);
  return (
    <div class="table" tabIndex={0} role="region" aria-label={t("md.table")}>
      <table>
        <thead>
          <tr>{token.header.map((cell, i) => <th key={i} class={align(i)}>{inline(cell.tokens, depth + 1)}</th>)}</tr>
        </thead>
        <tbody>
          {rows.map((row, r) => (
            <tr key={r}>{row.map((cell, i) => <td key={i} dir="auto" class={align(i)}>{inline(cell.tokens, depth + 1)}</td>)}</tr>
          ))}
        </tbody>
      </table>
      {rows.length < token.rows.length ? (
        <button type="button" class="link" onClick={() => setAll(true)}>{t("md.rows", token.rows.length)}</button>
      ) : null}
    </div>
  );
}

function inline(tokens: Token[] | undefined, depth: number): ComponentChildren {
  if (!tokens) return null;
  return tokens.map((token, index) => <Inline key={index} token={token} depth={depth} />);
}

function Inline({ token, depth }: { token: Token; depth: number }): VNode {
  return <>{inlineOf(token, depth)}</>;
}

function inlineOf(token: Token, depth: number): ComponentChildren {
  if (depth > MAX_DEPTH) return token.raw;
  const inner = () => inline((token as Tokens.Generic)["tokens"] as Token[] | undefined, depth + 1);
  switch (token.type) {
    case "strong":
      return <strong>{inner()}</strong>;
    case "em":
      return <em>{inner()}</em>;
    case "del":
      return <del>{inner()}</del>;
    case "codespan":
      return <code>{(token as Tokens.Codespan).text}</code>;
    case "br":
      return <br />;
    case "link":
      return link(token as Tokens.Link, inner());
    case "image":
      return image(token as Tokens.Image);
    case "math":
      return mathOf(token);
    case "escape":
      return (token as Tokens.Escape).text;
    case "text": {
      const { tokens, text } = token as Tokens.Text;
      return tokens ? inline(tokens, depth + 1) : unescaped(text);
    }
    default:
      return token.raw; // HTML stays text
  }
}

function link(token: Tokens.Link, inner: ComponentChildren): ComponentChildren {
  if (!SAFE_LINK.test(token.href)) return <span>{inner}</span>;
  return (
    <a href={token.href} title={token.href} target="_blank" rel="noopener noreferrer nofollow">
      {inner}
    </a>
  );
}

/** An image that is in the text itself; another one is a link, so that nothing is loaded unasked. */
function image(token: Tokens.Image): ComponentChildren {
  if (SAFE_IMAGE.test(token.href)) return <img src={token.href} alt={token.text} />;
  return link({ ...token, type: "link", tokens: [] } as unknown as Tokens.Link, `🖼 ${token.text || token.href.slice(0, 80)}`);
}

function mathOf(token: Token): VNode {
  const { text, display } = token as unknown as { text: string; display: boolean };
  return <MathText text={text} display={display} raw={token.raw} />;
}

const ENTITIES: Record<string, string> = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#39;": "'", "&nbsp;": "\u00a0" };

function unescaped(text: string): string {
  return text.replace(/&(?:amp|lt|gt|quot|#39|nbsp);/g, (entity) => ENTITIES[entity] ?? entity);
}
