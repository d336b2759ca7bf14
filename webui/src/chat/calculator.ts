/** Arithmetic without `eval`: + - * / % ^, parentheses, functions and constants. */

const FUNCTIONS: Record<string, (value: number) => number> = {
  sqrt: Math.sqrt,
  abs: Math.abs,
  sin: Math.sin,
  cos: Math.cos,
  tan: Math.tan,
  exp: Math.exp,
  ln: Math.log,
  log: Math.log10,
  round: Math.round,
  floor: Math.floor,
  ceil: Math.ceil,
};
const CONSTANTS: Record<string, number> = { pi: Math.PI, e: Math.E };
const MAX_LENGTH = 1000;

/** @throws Error the text is no expression, with the place. */
export function calculate(text: string): number {
  if (text.length > MAX_LENGTH) throw new Error(`the expression is longer than ${MAX_LENGTH} characters`);
  const tokens = text.replace(/×/g, "*").replace(/÷/g, "/").replace(/\*\*/g, "^").match(/\d*\.?\d+(?:e[+-]?\d+)?|[a-z]+|\S/gi) ?? [];
  let at = 0;
  const fail = (): never => {
    throw new Error(`unexpected ${tokens[at] ?? "end"} in the expression`);
  };
  const sum = (): number => {
    let value = product();
    while (tokens[at] === "+" || tokens[at] === "-") value = tokens[at++] === "+" ? value + product() : value - product();
    return value;
  };
  const product = (): number => {
    let value = signed();
    for (;;) {
      const operator = tokens[at];
      if (operator === "*") (at++, (value *= signed()));
      else if (operator === "/") (at++, (value /= signed()));
      else if (operator === "%") (at++, (value %= signed()));
      else return value;
    }
  };
  const signed = (): number => {
    if (tokens[at] === "-") return (at++, -signed());
    if (tokens[at] === "+") return (at++, signed());
    const base = atom();
    return tokens[at] === "^" ? (at++, base ** signed()) : base;
  };
  const atom = (): number => {
    const token = tokens[at] ?? fail();
    if (/^[\d.]/.test(token)) return (at++, Number(token));
    if (token === "(") {
      at++;
      const value = sum();
      if (tokens[at++] !== ")") (at--, fail());
      return value;
    }
    const name = token.toLowerCase();
    if (Object.hasOwn(CONSTANTS, name)) return (at++, CONSTANTS[name]!);
    if (!Object.hasOwn(FUNCTIONS, name) || tokens[at + 1] !== "(") return fail();
    at++;
    return FUNCTIONS[name]!(atom());
  };
  const value = sum();
  if (at < tokens.length) fail();
  return value;
}
