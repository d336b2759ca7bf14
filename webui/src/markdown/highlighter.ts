/** The highlighter, as a tree of scopes rather than as markup. Loaded with the first code block. */
import hljs from "highlight.js/lib/common";

interface Scope {
  scope?: string;
  children: (Scope | string)[];
}

export function highlight(text: string, language: string): Scope | null {
  if (!hljs.getLanguage(language)) return null;
  const found = hljs.highlight(text, { language, ignoreIllegals: true }) as unknown as {
    _emitter: { rootNode: Scope };
  };
  return found._emitter.rootNode;
}
