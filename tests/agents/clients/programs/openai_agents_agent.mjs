// Agent of the OpenAI Agents SDK for JavaScript, on responses or on chat completions, with or without a stream.

import { Agent, run, setOpenAIAPI, setTracingDisabled, tool } from "@openai/agents";
import { z } from "zod";

const [api, stream] = process.argv[2].split("-");
setTracingDisabled(true);
setOpenAIAPI(api);
const countWords = tool({
  name: "count_words",
  description: "Counts words.",
  parameters: z.object({ text: z.string() }),
  execute: async ({ text }) => `count=${text.split(" ").length}`,
});
const agent = new Agent({ name: "counter", instructions: "Use the tool.", model: "policy", tools: [countWords] });

async function ask(input) {
  const result = stream ? await run(agent, input, { stream: true }) : await run(agent, input);
  if (stream) await result.completed;
  return result;
}

const first = await ask("How many words has the text?");
console.log("answer:", first.finalOutput);
const second = await ask([...first.history, { role: "user", content: "Is this sure?" }]);
console.log("answer:", second.finalOutput);
