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
