/** Votes as an arena: each vote is a duel of every pair, and a share of duels won has an interval. */
import type { Vote } from "../data/types";

export interface Standing {
  name: string;
  duels: number;
  /** Of the duels, ties counted half. */
  share: number;
  /** Wilson's interval of 95 %. */
  low: number;
  high: number;
}

export function standings(votes: Vote[]): Standing[] {
  const duels = new Map<string, number>();
  const points = new Map<string, number>();
  const add = (counts: Map<string, number>, name: string, value: number) => counts.set(name, (counts.get(name) ?? 0) + value);
  for (const { sides, winner } of votes) {
    sides.forEach((name, index) => {
      for (const [other, opponent] of sides.entries()) {
        // Equal sides say nothing; nor do two that both lost to a third.
        if (other === index || opponent === name) continue;
        if (winner >= 0 && winner !== index && winner !== other) continue;
        add(duels, name, 1);
        add(points, name, winner === index ? 1 : winner < 0 ? 0.5 : 0);
      }
    });
  }
  return [...duels]
    .map(([name, count]) => {
      const share = (points.get(name) ?? 0) / count;
      return { name, duels: count, share, ...wilson(share, count) };
    })
    .sort((a, b) => b.share - a.share || b.duels - a.duels);
}

function wilson(share: number, count: number): { low: number; high: number } {
  const z = 1.96;
  const middle = (share + (z * z) / (2 * count)) / (1 + (z * z) / count);
  const half = (z / (1 + (z * z) / count)) * Math.sqrt((share * (1 - share)) / count + (z * z) / (4 * count * count));
  return { low: Math.max(0, middle - half), high: Math.min(1, middle + half) };
}
