// The shared worker that holds the one event stream of all tabs of a browser. HTTP/1.1 allows six connections to a
// server: with a stream per tab the seventh tab would never load. A tab says every second which topic it follows.
import { startStream } from "./stream.js";

const FORGOTTEN_AFTER_MS = 8000; // a tab that closed, crashed or is frozen says nothing
const tabs = new Map(); // by port: the topic of a tab, and when it was last heard

const stream = startStream(self.name, (topic, name, data) => {
  for (const [port, tab] of tabs) {
    if (tab.topic !== topic) continue;
    port.postMessage([name, data]);
    if (name === "refused") tabs.delete(port);
  }
});

const wanted = () => [...new Set([...tabs.values()].map(({ topic }) => topic))];

function hear(port, topic) {
  const before = tabs.get(port)?.topic;
  if (topic) tabs.set(port, { topic, heardAt: Date.now() });
  else tabs.delete(port);
  // A new follower is sent everything.
  if (topic && topic !== before) stream.follow(wanted());
  else if (before && !tabs.size) stream.follow([]);
  port.postMessage(["is-open", Boolean(topic) && stream.isOpen(topic)]);
}

addEventListener("connect", ({ ports: [port] }) => {
  port.addEventListener("message", ({ data }) => hear(port, data));
  port.start();
});

setInterval(() => {
  for (const [port, { heardAt }] of tabs) if (Date.now() - heardAt > FORGOTTEN_AFTER_MS) tabs.delete(port);
  const topics = wanted();
  if (topics.length < stream.topics().length) stream.follow(topics);
  stream.watch();
}, 1000);
