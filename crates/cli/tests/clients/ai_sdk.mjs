// Drives a model that knows tools through Vercel's AI SDK. Usage: ai_sdk.mjs PACKAGES BASE_URL (ending in /v1) MODEL.
import assert from 'node:assert';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [packages, baseURL, name] = process.argv.slice(2);
const require = createRequire(packages + '/');
const load = async (module) => import(pathToFileURL(require.resolve(module)));
const { generateText, streamText, generateObject, embedMany, tool, stepCountIs, APICallError } = await load('ai');
const { createOpenAICompatible } = await load('@ai-sdk/openai-compatible');
const { z } = await load('zod');

const provider = createOpenAICompatible({ name: 'lichen', baseURL, apiKey: 'none', includeUsage: true, supportsStructuredOutputs: true });
const model = provider(name);
const common = { model, temperature: 0, maxRetries: 0 };

const plain = await generateText({ ...common, prompt: 'What is the capital of France?', maxOutputTokens: 16 });
assert.match(plain.text, /Paris/);
const stream = streamText({ ...common, prompt: 'What is the capital of France?', maxOutputTokens: 16 });
let streamed = '';
for await (const part of stream.textStream) streamed += part;
assert.equal(streamed, plain.text);
assert.ok((await stream.usage).inputTokens > 0);
console.log('chat done');

let asked;
const weather = tool({
  description: 'The weather of a city',
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => { asked = city; return { temperature: 31 }; },
});
const answer = await generateText({
  ...common,
  prompt: 'What is the weather in Paris? Use the tool.',
  tools: { get_weather: weather },
  // Left to itself, a model of this size rather talks about the tool.
  toolChoice: 'required',
  stopWhen: stepCountIs(1),
  maxOutputTokens: 100,
});
assert.match(asked, /Paris/);
assert.deepEqual(answer.toolResults[0].output, { temperature: 31 });
console.log('tools done');

const { object } = await generateObject({
  ...common,
  schema: z.object({ name: z.string().max(20), age: z.number().int().min(0).max(150) }),
  prompt: 'Invent a person.',
  maxOutputTokens: 100,
});
assert.ok(object.age <= 150);
console.log('object done');

const { embeddings } = await embedMany({ model: provider.textEmbeddingModel(name), values: ['a', 'b'] });
assert.ok(embeddings.length === 2 && embeddings[0].length === embeddings[1].length);
await assert.rejects(
  generateText({ ...common, prompt: 'word '.repeat(60000) }),
  (error) => APICallError.isInstance(error) && error.statusCode === 400 && /maximum context length/.test(error.message),
);
console.log('embeddings and errors done');
