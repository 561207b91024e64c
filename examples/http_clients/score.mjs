// Score rows by `sparsegroup serve` from JavaScript: Node 18 or later, no package.
//
//     node examples/http_clients/score.mjs http://127.0.0.1:8000 rows.json
//
// rows.json is a list of objects, column -> value. Prints a line per row: the prediction as JSON.
import { readFile } from "node:fs/promises";

const RETRIES = 5;

export async function score(server, rows) {
  for (let attempt = 0; ; attempt++) {
    const answer = await fetch(`${server}/predict`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ rows }),
    });
    if (answer.status === 429 && attempt < RETRIES) {
      // busy: wait as long as the server says
      const seconds = Number(answer.headers.get("Retry-After") ?? 1);
      await new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
      continue;
    }
    const content = await answer.json();
    if (!answer.ok) {
      const places = (content.bad ?? []).map(({ row, column, reason }) => `row ${row}, ${column}: ${reason}`);
      throw new Error([content.error, ...places].join("\n"));
    }
    return content; // { predictions: [...], release: the number of the release that has scored them }
  }
}

const [server, file] = process.argv.slice(2);
try {
  const { predictions, release } = await score(server, JSON.parse(await readFile(file, "utf8")));
  for (const prediction of predictions) console.log(JSON.stringify(prediction));
  console.error(`${predictions.length} rows, by release ${release}`);
} catch (error) {
  console.error(`error: ${error.message}`);
  process.exitCode = 1;
}
