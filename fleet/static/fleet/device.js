// The panel "This device": whether this browser is notified of alerts, and the buttons for that.

const panel = document.querySelector("#device[data-worker]");
const part = (id) => document.getElementById(`device-${id}`);
const permission = panel && (await navigator.permissions?.query({ name: "notifications" }).catch(() => null));

const subscription = async () => (await navigator.serviceWorker.getRegistration("/"))?.pushManager.getSubscription();

/** Find the row of this browser in the list of receivers; none where the server does not know it. */
async function row() {
  const { endpoint } = (await subscription()) ?? {};
  if (!endpoint) return null;
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(endpoint)));
  const fingerprint = Array.from(hash, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return document.querySelector(`[data-device="${fingerprint}"]:has(.remove)`);
}

async function stateNow() {
  if (!isSecureContext) return "insecure";
  if (!("serviceWorker" in navigator && "PushManager" in window && "Notification" in window)) return "unsupported";
  if ((permission?.state ?? Notification.permission) === "denied") return "denied";
  const here = await row();
  if (!here) return "off";
  if (here.querySelector("button[value=on]")) return "paused";
  part("why").textContent = here.querySelector(".detail-text")?.textContent.trim() ?? "";
  return here.matches(".bad, .warn") ? "failing" : "on";
}

async function update() {
  const state = await stateNow();
  for (const each of panel.querySelectorAll("[data-when]")) each.hidden = !each.dataset.when.split(" ").includes(state);
}

/** Name this browser as people do: Firefox on Android. */
function name() {
  const agent = navigator.userAgent;
  const first = (names) => names.find(([pattern]) => pattern.test(agent))?.[1];
  const browser = first([[/Edg/, "Edge"], [/OPR/, "Opera"], [/Firefox|FxiOS/, "Firefox"], [/Chrome|CriOS/, "Chrome"], [/Safari/, "Safari"]]);
  const system = first([[/Android/, "Android"], [/iPhone/, "iPhone"], [/iPad/, "iPad"], [/Windows/, "Windows"], [/Mac/, "macOS"], [/Linux/, "Linux"]]);
  return `${browser ?? "Browser"} on ${system ?? "this device"}`;
}

async function subscribe(form) {
  if ((await Notification.requestPermission()) !== "granted") return update();
  const registration = await navigator.serviceWorker.register(panel.dataset.worker, { scope: "/" });
  await navigator.serviceWorker.ready;
  // One for an earlier key of the server, or one that the server has removed, is of no use.
  await (await registration.pushManager.getSubscription())?.unsubscribe();
  const made = await registration.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: form.elements.server_key.value });
  const { endpoint, keys } = made.toJSON();
  for (const [field, value] of Object.entries({ endpoint, ...keys })) if (form.elements[field]) form.elements[field].value = value;
  return form.submit();
}

/** Do it while the buttons are off; show why it failed. */
async function attempt(act) {
  const buttons = panel.querySelectorAll("button");
  for (const button of buttons) button.disabled = true;
  part("error").hidden = true;
  try {
    await act();
  } catch (error) {
    part("error").textContent = `The browser refused: ${error.message}`;
    part("error").hidden = false;
  }
  for (const button of buttons) button.disabled = false;
}

async function stop() {
  const here = await row();
  await (await subscription())?.unsubscribe();
  here?.querySelector(".remove button").click();
}

async function test() {
  const here = await row();
  here?.scrollIntoView({ block: "center" });
  here?.querySelector(".test button").click();
}

if (panel) {
  const form = panel.querySelector("form");
  form.elements.name.value = name();
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    attempt(() => subscribe(form));
  });
  part("stop").addEventListener("click", () => attempt(stop));
  part("test").addEventListener("click", () => attempt(test));
  // People may allow in another place what they have denied here.
  permission?.addEventListener("change", update);
  await update();
}
