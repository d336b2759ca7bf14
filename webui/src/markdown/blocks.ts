/** Markdown as blocks, parsed piece by piece: a text that grows is parsed at its end alone. */
import { Marked, type Token, type TokenizerExtension } from "marked";

export type { Token };

/** A block longer than this is shown as plain text: one task must not parse it for long. */
const MAX_BLOCK = 40_000;

/** Of a text that is complete already, so much is parsed in a task. */
export const PIECE = 12_000;

function math(name: string, level: "block" | "inline", start: RegExp, rule: RegExp, display: boolean): TokenizerExtension {
  return {
    name,
    level,
    start: (source) => {
      const at = source.search(start);
      return at < 0 ? undefined : at;
    },
    tokenizer: (source) => {
      const match = rule.exec(source);
      return match ? { type: "math", raw: match[0], text: match[1] ?? "", display } : undefined;
    },
  };
}

const parser = new Marked({ gfm: true, breaks: false });
parser.use({
  extensions: [
    math("mathBlock", "block", /\$\$/, /^\$\$((?:[^$]|\$(?!\$)){1,4000})\$\$(?=\n|$)/, true),
    math("mathBracket", "block", /\\\[/, /^\\\[([^]{1,4000}?)\\\](?=\n|$)/, true),
    math("mathInlineDisplay", "inline", /\$\$/, /^\$\$([^$\n]{1,4000})\$\$/, true),
    math("mathInlineBracket", "inline", /\\\[/, /^\\\[([^\n]{1,4000}?)\\\]/, true),
    math("mathInlineParen", "inline", /\\\(/, /^\\\(([^\n]{1,4000}?)\\\)/, false),
    // A dollar opens no formula before a space, and closes none before a digit: "$5 and $6".
    math("mathInline", "inline", /\$/, /^\$(?!\s)([^$\n]{1,2000}?)(?<![\s\\])\$(?!\d)/, false),
  ],
});

export interface Block {
  start: number;
  token: Token;
}

/** Parse a text whole; what cannot be parsed is one plain block. */
function parse(source: string): Token[] {
  const plain = (raw: string): Token => ({ type: "plain", raw, text: raw }) as Token;
  if (source.length > MAX_BLOCK && !/^\s*(```|~~~)/.test(source)) {
    // Cut where a paragraph ends, so that most of it is read.
    const cut = source.lastIndexOf("\n\n", MAX_BLOCK);
    if (cut <= 0) return [plain(source)];
    return [...parse(source.slice(0, cut + 2)), ...parse(source.slice(cut + 2))];
  }
  try {
    return parser.lexer(source);
  } catch {
    return [plain(source)]; // nested too deeply
  }
}

export class Blocks {
  private source = "";
  private blocks: Block[] = [];

  /** The blocks of a text; of one that the last one begins with, its last blocks are parsed anew. */
  update(source: string): Block[] {
    if (source === this.source) return this.blocks;
    let keep = 0;
    if (this.source && source.startsWith(this.source)) {
      // A list or a paragraph may go on after the last block, which may be a space.
      keep = Math.max(0, this.blocks.length - 3);
    }
    const start = this.blocks[keep]?.start ?? 0;
    const blocks = this.blocks.slice(0, keep);
    let at = keep ? start : 0;
    for (const token of parse(source.slice(at))) {
      blocks.push({ start: at, token });
      at += token.raw.length;
    }
    // The lexer expands tabs and line ends: offsets are then not the source's, and nothing is kept.
    this.source = at === source.length ? source : "";
    this.blocks = blocks;
    return blocks;
  }
}
