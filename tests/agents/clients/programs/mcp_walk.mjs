// Walks through the tools of a server over stdio with the official TypeScript SDK: node mcp_walk.mjs COMMAND ARGUMENT...
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";

const [command, ...args] = process.argv.slice(2);
const client = new Client({ name: "walk", version: "1" });
await client.connect(new StdioClientTransport({ command, args, env: process.env }));
const tools = (await client.listTools()).tools.map((tool) => tool.name);
const report = await client.callTool({ name: "fleet_report", arguments: {} });
const doctor = await client.callTool({ name: "run_doctor", arguments: {} });
const refused = await client.callTool({ name: "run_change", arguments: { action: "fork", reason: "no rate is given" } });
await client.close();
console.log(JSON.stringify({
  tools,
  pools: report.structuredContent.pools.length,
  faults: doctor.structuredContent.faults.map((fault) => fault.fault),
  refused: [refused.isError, JSON.parse(refused.content[0].text).error],
}));
