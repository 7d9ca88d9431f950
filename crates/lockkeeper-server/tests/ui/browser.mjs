// What an operator does, in Debian's Chromium: looks, filters, breaks by keyboard, with and without JavaScript.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const { URL: site, OPS, APP, PICTURES } = process.env;
const axe = createRequire(import.meta.url).resolve("axe-core");
const HOSTILE = ["<img src=x onerror=alert(1)>", '"><script>alert(1)</script>', "' onmouseover='alert(1)", "a\r\nb", "\u202ex"];
const SOON = 30_000;

const holder = () => [...crypto.getRandomValues(new Uint8Array(16))].map((b) => b.toString(16).padStart(2, "0")).join("");
async function api(path, body) {
  const headers = { Authorization: `Bearer ${APP}`, "Content-Type": "application/json" };
  const answer = await fetch(`${site}/v1/${path}`, { method: "POST", headers, body: JSON.stringify(body) });
  return { status: answer.status, ...(await answer.json()) };
}
const take = (name, more = {}) =>
  api("acquire", { name, holder: holder(), ttl_ms: 300_000, host: "db-3", pid: 4711, ...more });

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
}).catch((error) => {
  throw new Error(`Chromium does not start: apt-get install chromium\n${error}`);
});

// A context in which whatever a page should not do is noticed.
const noticed = [];
async function context(options = {}, cookies = []) {
  const context = await browser.newContext({ viewport: { width: 1100, height: 620 }, ...options });
  await context.addCookies(cookies);
  context.setDefaultTimeout(SOON);
  context.on("page", (page) => {
    page.on("dialog", (dialog) => { noticed.push(`a dialog: ${dialog.message()}`); dialog.dismiss(); });
    page.on("pageerror", (error) => noticed.push(`an error: ${error}`));
    page.on("console", (line) => { if (/Content Security Policy|Uncaught/.test(line.text())) noticed.push(line.text()); });
  });
  return context;
}

async function logIn(page) {
  await page.goto(`${site}/`);
  assert.equal(new URL(page.url()).pathname, "/login", "first a token is asked for");
  await page.getByLabel("Token").fill(OPS);
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Locks" }).waitFor();
}

// Moves the focus by keyboard until an element has it.
async function tabTo(page, element) {
  for (let i = 0; i < 60; i++) {
    if (await element.evaluate((el) => el === document.activeElement)) return;
    await page.keyboard.press("Tab");
  }
  assert.fail("the keyboard does not get there");
}

async function check(page, what) {
  await page.addScriptTag({ path: axe });
  const tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
  const { violations } = await page.evaluate((tags) => axe.run(document, { runOnly: tags }), tags);
  const found = violations.map((v) => `${v.id}: ${v.help}\n  ${v.nodes.map((n) => n.html).join("\n  ")}`);
  assert.deepEqual(found, [], `axe on ${what}`);
}

const pages = { locks: "/", lock: "/lock?name=shop%2Forders%2F42", health: "/health", events: "/events" };

// What there is to see.
for (const name of HOSTILE) assert.equal((await take(name, { label: name })).status, 200);
const held = await take("shop/orders/42", { label: "night export" });
await take("shop/invoices", { label: "monthly", host: "worker-1", pid: 88 });
await take("shop/search/reindex", { label: "by ann", host: "worker-2", pid: 1207, ttl_ms: 60_000 });
await take("shop/stock", { mode: "shared", label: "report", host: "web-1", pid: 12 });
await take("shop/stock", { mode: "shared", label: "report", host: "web-2", pid: 9 });
// A request waits for 25 s at most, and the next one with the same holder goes on in its place.
async function stand(name, more) {
  const me = { holder: holder(), wait_ms: 25_000, stay: true, ...more };
  for (;;) {
    const answer = await take(name, me);
    if (answer.status !== 409) return answer;
  }
}
const waiting = ["web-1", "web-2"].map((host, i) => stand("shop/orders/42", { host, pid: 300 + i, label: "checkout" }));

const light = await context();
const page = await light.newPage();
await logIn(page);

// Hostile names are text.
const rows = page.locator("#rows");
for (const name of HOSTILE.slice(0, 3)) await rows.getByRole("link", { name, exact: true }).waitFor();
assert.equal(await page.locator("#rows img, #rows script").count(), 0);
await rows.getByText("a\\x0d\\x0ab").first().waitFor();
await rows.getByText("\\u{202e}x").first().waitFor();
await rows.locator("tr", { hasText: "shop/orders/42" }).getByText("2", { exact: true }).waitFor();

// A lock that is taken now appears by itself; times run; the focus stays where it was.
const link = rows.getByRole("link", { name: "shop/invoices" });
const isFocused = () => link.evaluate((el) => el === document.activeElement);
// An update may replace the link just before it is focused.
do await link.focus(); while (!(await isFocused()));
await take("shop/just-now");
await rows.getByRole("link", { name: "shop/just-now" }).waitFor();
assert.ok(await isFocused(), "the focus stayed");
const left = rows.locator("tr", { hasText: "shop/invoices" }).locator("[data-left]");
const before = await left.textContent();
await page.waitForFunction(([sel, before]) => [...document.querySelectorAll(sel)].some((row) =>
  row.textContent.includes("shop/invoices") && row.querySelector("[data-left]").textContent !== before), ["#rows tr", before]);
// Paused, nothing moves: what is taken now comes when it goes on.
const pause = page.getByRole("button", { name: "Pause" });
await pause.click();
await take("shop/while-paused");
assert.equal(await pause.getAttribute("aria-pressed"), "true");
const other = await light.newPage();
await other.goto(`${site}/?prefix=shop/while`);
await other.locator("#rows").getByRole("link", { name: "shop/while-paused" }).waitFor();
assert.equal(await rows.getByRole("link", { name: "shop/while-paused" }).count(), 0);
await pause.click();
await rows.getByRole("link", { name: "shop/while-paused" }).waitFor();
await other.close();

// Breaking, by keyboard alone: first with a wrong token.
await page.goto(`${site}${pages.lock}`);
await page.locator("#line li").nth(1).waitFor();
for (const [token, said] of [[held.token - 1, "no holder has that token"], [held.token, "The lock was broken"]]) {
  const summary = page.locator("summary");
  await tabTo(page, summary);
  await page.keyboard.press("Enter");
  await tabTo(page, page.locator("#token"));
  await page.keyboard.type(String(token));
  await page.keyboard.press("Tab");
  await page.keyboard.type("broken in a browser");
  await page.keyboard.press("Enter");
  await page.getByRole("alert").filter({ hasText: said }).waitFor();
}
const next = await Promise.race(waiting);
assert.ok(next.status === 200 && next.token > held.token, JSON.stringify(next));
await page.locator("#rows").getByText(String(next.token)).waitFor();

// A page of another origin that knows the token cannot break, though the browser sends the cookie along.
const evil = createServer((_, answer) => answer.setHeader("Content-Type", "text/html").end(
  `<form method=post action="${site}/break"><input name=name value="shop/orders/42"><input name=token value="${next.token}">
   <input name=why value=evil><input name=csrf value=0></form><script>document.forms[0].submit()</script>`));
await new Promise((done) => evil.listen(0, "127.0.0.1", done));
const forged = await light.newPage();
const refused = forged.waitForResponse((answer) => answer.url() === `${site}/break`);
await forged.goto(`http://127.0.0.1:${evil.address().port}/`);
assert.equal((await refused).status(), 403);
await forged.getByRole("heading", { name: "That did not work" }).waitFor();
evil.close();
const cookies = await light.cookies();

// Without JavaScript everything is there, and the page asks to be loaded again.
const plain = await context({ javaScriptEnabled: false }, cookies);
const bare = await plain.newPage();
await bare.goto(`${site}/?prefix=shop/&sort=waiting`);
assert.match(await bare.locator("#rows tr").first().textContent(), /shop\/orders\/42/);
assert.match(await bare.content(), /<noscript><meta http-equiv="refresh" content="5"/);
assert.equal(await bare.getByRole("button", { name: "Pause" }).count(), 0, "a button that could do nothing is hidden");
await bare.getByRole("link", { name: "shop/orders/42" }).click();
assert.doesNotMatch(await bare.content(), /http-equiv="refresh"/, "nothing that is typed is taken away");
assert.deepEqual(noticed, []);

// What a tool can say for people with a screen reader, and of contrast.
for (const colorScheme of ["light", "dark"]) {
  // The policy forbids scripts of others, so axe is let in here only.
  const judged = await context({ colorScheme, bypassCSP: true }, cookies);
  const tab = await judged.newPage();
  for (const [what, path] of Object.entries(pages)) {
    await tab.goto(`${site}${path}`);
    if (what === "lock") await tab.locator("summary").click();
    await check(tab, `${what}, ${colorScheme}`);
  }
  await judged.clearCookies();
  await tab.goto(`${site}/login`);
  await check(tab, `log-in, ${colorScheme}`);
  await judged.close();
}
// A small screen shows the list without scrolling aside.
const small = await context({ viewport: { width: 380, height: 700 }, bypassCSP: true }, cookies);
const phone = await small.newPage();
await phone.goto(`${site}/`);
await check(phone, "locks, narrow");
const aside = await phone.evaluate(() => document.documentElement.scrollWidth - innerWidth);
assert.ok(aside <= 0, `the list is ${aside} pixels too wide`);
await small.close();

if (PICTURES) {
  for (const [host, pid] of [["web-1", 311], ["web-2", 302]]) stand("shop/invoices", { host, pid, label: "checkout" });
  const picture = async (name, path, options) => {
    const shot = await context(options, cookies);
    const tab = await shot.newPage();
    await tab.goto(`${site}${path}`);
    await tab.getByText(/[23] clients wait/).waitFor();
    if (name === "dark") await tab.locator("summary").click();
    await tab.screenshot({ path: `${PICTURES}/dashboard-${name}.png` });
    await shot.close();
  };
  await picture("light", "/?prefix=shop/&sort=waiting", { viewport: { width: 1100, height: 480 } });
  await picture("dark", "/lock?name=shop/invoices", { viewport: { width: 1000, height: 800 }, colorScheme: "dark" });
  await picture("narrow", "/?prefix=shop/&sort=waiting", { viewport: { width: 380, height: 600 } });
}
await browser.close();
// One still stands in line.
process.exit(0);
