// Agent of LangChain for JavaScript, with OpenAI's chat or responses or Anthropic's messages, with or without a stream.

import { createAgent, tool } from "langchain";
import { ChatAnthropic } from "@langchain/anthropic";
import { ChatOpenAI } from "@langchain/openai";
import { z } from "zod";

const [api, stream] = process.argv[2].split("-");
const streaming = stream === "stream";
const model =
  api === "anthropic"
    ? new ChatAnthropic({ model: "policy", streaming, anthropicApiUrl: process.env.ANTHROPIC_BASE_URL })
    : new ChatOpenAI({
        model: "policy",
        streaming,
        useResponsesApi: api === "responses",
        configuration: { baseURL: process.env.OPENAI_BASE_URL },
      });
const countWords = tool(async ({ text }) => `count=${text.split(" ").length}`, {
  name: "count_words",
  description: "Counts words.",
  schema: z.object({ text: z.string() }),
});
const agent = createAgent({ model, tools: [countWords], systemPrompt: "Use the tool." });

const first = await agent.invoke({ messages: [{ role: "user", content: "How many words has the text?" }] });
console.log("answer:", first.messages.at(-1).text);
const second = await agent.invoke({ messages: [...first.messages, { role: "user", content: "Is this sure?" }] });
console.log("answer:", second.messages.at(-1).text);
