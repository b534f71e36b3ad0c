// Runs the checks compiled to WASM and prints their report: node node.mjs MODULE

import { readFileSync } from "node:fs";

const BEGIN = Buffer.from("<kernel-checks>\n");
const END = Buffer.from("</kernel-checks>\n");

const { exports: module } = new WebAssembly.Instance(new WebAssembly.Module(readFileSync(process.argv[2])));
const code = module.main(0, 0);
const memory = Buffer.from(module.memory.buffer);
const begin = memory.indexOf(BEGIN);
const end = memory.indexOf(END, begin);
if (begin < 0 || end < 0) {
  throw new Error("no report in the module's memory");
}
process.stdout.write(memory.subarray(begin + BEGIN.length, end));
process.exitCode = code;
