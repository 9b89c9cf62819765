// The worker of tests/http/libraries.rs: doubles numbers until it is told to stop.
import { Worker } from "../dist/index.js";

await new Worker({
  url: process.env.MOONSWARM_URL,
  token: process.env.QUEUE_TOKEN,
  queue: "doubles",
  maxInFlight: 8,
  pause: [50, 500],
  work: async (task) => {
    await task.progress({ text: "doubling" });
    if (task.input.n === 1) await task.artifact("one.md", "# one");
    return { double: task.input.n * 2 };
  },
}).run();
console.log("stopped");
