// The service worker: shows notifications, and opens what they are about. It caches nothing.

self.addEventListener("push", (event) => {
  const message = event.data?.json() ?? { title: "trnwatch", text: "", url: "/alerts/", tag: "", rings: true, stays: false };
  const { title, text, url, tag, rings, stays } = message;
  const options = { body: text, tag, renotify: rings && tag !== "", silent: !rings, requireInteraction: stays, data: url };
  event.waitUntil(self.registration.showNotification(title, options));
});

self.addEventListener("notificationclick", (event) => {
  event.notification.close();
  event.waitUntil(show(event.notification.data));
});

// The page at this installation, by whatever name people reach it; a tab that shows it already is used.
async function show(address) {
  const { pathname, search } = new URL(address, self.location.origin);
  const url = self.location.origin + pathname + search;
  const tabs = await self.clients.matchAll({ type: "window", includeUncontrolled: true });
  const tab = tabs.find((each) => each.url.split("#")[0] === url);
  return tab ? tab.focus() : self.clients.openWindow(url);
}

// The push service gives this browser another address, or has ended its subscription.
self.addEventListener("pushsubscriptionchange", (event) => {
  event.waitUntil(renew(event).catch(() => false).then((isRenewed) => isRenewed || warn()));
});

/** Subscribe again, and give the server the new address; the old one says which device this is. */
async function renew({ oldSubscription, newSubscription }) {
  if (!oldSubscription) return false;
  const { applicationServerKey } = oldSubscription.options;
  const made = newSubscription ?? (await self.registration.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey }));
  const [old, { endpoint, keys }] = [oldSubscription.toJSON(), made.toJSON()];
  const body = new URLSearchParams({ old_endpoint: old.endpoint, old_auth: old.keys.auth, endpoint, ...keys });
  return (await fetch("/notifications/devices/renew/", { method: "POST", body })).ok;
}

// Some browsers do not say what the old address was. Silence must not look like calm.
const warn = () => self.registration.showNotification("No more alerts on this device", {
  body: "Its subscription has ended. Tap to be notified here again.", data: "/notifications/", tag: "device", requireInteraction: true,
});
