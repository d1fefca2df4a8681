"""Check the built site in headless Chromium: `python docs/check_pages.py docs/_build/html`.

Every page is opened 1280 and 400 pixels wide. No page may scroll sideways, every picture must load, nothing may come
from another host, and the search must find a term.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SECONDS = 300
PROBE = """<!doctype html><body><script>
const pages = PAGES, problems = [];
const wait = milliseconds => new Promise(done => setTimeout(done, milliseconds));
async function open(page, width) {
  const frame = document.createElement("iframe");
  frame.style = `width: ${width}px; height: 900px; border: 0`;
  frame.src = page;
  document.body.append(frame);
  await new Promise(done => frame.onload = done);
  return frame;
}
async function check(page, width) {
  const frame = await open(page, width), inside = frame.contentDocument, root = inside.documentElement;
  for (const image of inside.images) image.loading = "eager";
  await Promise.all([...inside.images].map(image => image.decode().catch(() => {})));
  if (root.scrollWidth > frame.contentWindow.innerWidth)
    problems.push(`${page} at ${width}: scrolls sideways, ${root.scrollWidth} pixels wide`);
  for (const image of inside.images)
    if (!image.naturalWidth) problems.push(`${page}: picture ${image.src} does not load`);
  for (const loaded of frame.contentWindow.performance.getEntriesByType("resource"))
    if (new URL(loaded.name).host !== location.host) problems.push(`${page}: loads ${loaded.name}`);
  frame.remove();
}
async function search(term) {
  const frame = await open(`search.html?q=${term}`, 1280);
  for (let tries = 0; tries < 50; tries++) {
    if (frame.contentDocument.querySelector("#search-results li a")) return;
    await wait(200);
  }
  problems.push(`the search does not find ${term}`);
}
(async () => {
  try {
    for (const page of pages) for (const width of [1280, 400]) await check(page, width);
    await search("TWOSOME");
  } catch (error) { problems.push(String(error)); }
  fetch("/report", {method: "POST", body: JSON.stringify(problems)});
})();
</script>"""


class Handler(SimpleHTTPRequestHandler):
    """Serves the site, the probe at /probe, and takes the probe's report."""

    problems: list[str] | None = None
    reported = threading.Event()

    def do_GET(self) -> None:
        if self.path != "/probe":
            return super().do_GET()
        site = Path(self.directory)
        pages = sorted(str(path.relative_to(site)) for path in site.rglob("*.html") if "_static" not in path.parts)
        body = PROBE.replace("PAGES", json.dumps(pages)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(body)
        return None

    def do_POST(self) -> None:
        Handler.problems = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()
        Handler.reported.set()

    def log_message(self, format: str, *args: object) -> None:
        pass


def main(site: str) -> int:
    """Return 0 if all pages are as they should be, and print what is not."""
    if CHROMIUM is None:
        print("Pages are not checked: there is no Chromium on this machine.")
        return 0
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        command += [
            "--window-size=1400,1000",
            f"http://127.0.0.1:{server.server_port}/probe",
            "--remote-debugging-port=0",
        ]
        browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            Handler.reported.wait(SECONDS)
        finally:
            browser.terminate()
            browser.wait()
    if Handler.problems is None:
        print(f"Chromium did not finish within {SECONDS} seconds.")
        return 1
    print("\n".join(Handler.problems) or "All pages fit 400 and 1280 pixels, pictures load, the search works.")
    return 1 if Handler.problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
