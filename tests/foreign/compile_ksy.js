// node compile_ksy.js COMPILER LANGUAGE < file as JSON: prints {name of a source file: its text}.
"use strict";

const compiler = require(process.argv[2]);
const file = JSON.parse(require("node:fs").readFileSync(0, "utf8"));

compiler.compile(process.argv[3], file, null, false).then(
  (sources) => process.stdout.write(JSON.stringify(sources)),
  (fault) => {
    console.error(`error: ${fault.message ?? fault}`);
    process.exit(1);
  },
);
