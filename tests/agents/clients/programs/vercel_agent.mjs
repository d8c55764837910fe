// Agent of the Vercel AI SDK, with the provider of OpenAI (chat or responses) or of Anthropic, with or without a stream.
// The second question makes the SDK send back an answer of the first.

import { generateText, stepCountIs, streamText, tool } from "ai";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { z } from "zod";

const [api, stream] = process.argv[2].split("-");
const models = {
  chat: () => createOpenAI().chat("policy"),
  responses: () => createOpenAI().responses("policy"),
  anthropic: () => createAnthropic({ baseURL: `${process.env.ANTHROPIC_BASE_URL}/v1` })("policy"),
};
const countWords = tool({
  description: "Counts words.",
  inputSchema: z.object({ text: z.string() }),
  execute: async ({ text }) => `count=${text.split(" ").length}`,
});
const messages = [];

async function ask(question) {
  messages.push({ role: "user", content: question });
  const request = {
    model: models[api](),
    messages,
    tools: { count_words: countWords },
    stopWhen: stepCountIs(4),
    onError: ({ error }) => {
      throw error;
    },
  };
  const result = stream ? streamText(request) : await generateText(request);
  messages.push(...(await result.responseMessages));
  return await result.text;
}

console.log("answer:", await ask("How many words has the text?"));
console.log("answer:", await ask("Is this sure?"));
