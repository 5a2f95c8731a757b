// Requests to the server; every failure becomes an Error with a one-line message.

export async function get(path) {
  return reply(fetch(path));
}

export async function post(path, record) {
  const body = JSON.stringify(record);
  return reply(fetch(path, { method: "POST", headers: { "content-type": "application/json" }, body }));
}

export async function upload(file) {
  const headers = { "content-type": "application/octet-stream" };
  return reply(fetch(`api/upload?name=${encodeURIComponent(file.name)}`, { method: "POST", headers, body: file }));
}

async function reply(pending) {
  let response;
  try {
    response = await pending;
  } catch {
    throw new Error("The playground does not answer; is `motes serve` still running?");
  }
  const record = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(record.error ?? `The playground answered ${response.status}.`);
  return record;
}

// Runs one request at a time; of the requests made meanwhile, only the last is run afterwards. A running
// request can check whether another one is waiting.
export function latest(run) {
  let busy = false, waiting = false;
  return async function request() {
    if (busy) { waiting = true; return; }
    busy = true;
    try {
      await run(() => waiting);
    } finally {
      busy = false;
      if (waiting) { waiting = false; request(); }
    }
  };
}

export function bytes(base64) {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}
