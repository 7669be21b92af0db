// Following a job to its end, and how long it will still take.

import { Refusal, ask } from "./server.js";

const ACTIVE = new Set(["queued", "running"]);
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

export const isActive = (job) => ACTIVE.has(job.state);

/** Words for the time left, from the seconds so far and the share that is done; "" while it is a guess. */
export function timeLeft(seconds, share) {
  if (share < 0.05 || share >= 1 || seconds < 2) return "";
  const left = (seconds * (1 - share)) / share;
  if (left < 8) return "a few seconds left";
  if (left < 55) return `about ${Math.ceil(left / 10) * 10} seconds left`;
  const minutes = Math.round(left / 60);
  if (minutes <= 1) return "about a minute left";
  return minutes < 90 ? `about ${minutes} minutes left` : `about ${Math.round(minutes / 60)} hours left`;
}

/** The job as it ended; `show(job, left)` is called whenever it is asked about, more and more slowly. */
export async function follow(job, show) {
  let began = null;
  let from = 0;
  for (let wait = 100; isActive(job); wait = Math.min(2000, wait * 1.3)) {
    if (began === null && job.state === "running") [began, from] = [performance.now(), job.progress];
    const done = (job.progress - from) / Math.max(0.01, 1 - from);
    show(job, began === null ? "" : timeLeft((performance.now() - began) / 1000, done));
    await pause(wait);
    try {
      job = await ask(`jobs/${encodeURIComponent(job.id)}`);
    } catch (error) {
      if (error instanceof Refusal && error.status === 404) throw error;
      show({ ...job, message: error.message }, ""); // the server may be restarting: try again
    }
  }
  return job;
}

/** What to say of a job that did not end well: a title and a sentence. */
export function failure(job) {
  const lines = {
    failed: ["Learning failed", job.error],
    cancelled: ["Cancelled", "Nothing was changed."],
    interrupted: ["Interrupted", job.error ?? "The server stopped while it was learning. Nothing was changed; try again."],
  };
  const [title, text] = lines[job.state] ?? [`The job is ${job.state}`, job.error];
  return [title, text ?? "The server gave no reason."];
}
