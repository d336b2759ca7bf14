import type { VNode } from "preact";
export function BenchView(): VNode { return <></>; }
