// An event stream of the server that follows some topics and reconnects by itself.
const SILENT_AFTER_MS = 6000; // the server sends every second; this long a silence means a dead connection
const LONGEST_WAIT_MS = 15000;

/**
 * Follow topics over one connection: `tell(topic, name, data)` gets each event. The name `is-open` tells whether the
 * topic is followed (data: true or false), and `refused` that the server does not let this client follow it.
 */
export function startStream(address, tell) {
  let topics = [];
  let sources = []; // the newest, and the one before it until the newest is open
  let opened = []; // the topics that arrive
  let attempt = 0;
  let timer = 0;
  let heardAt = 0;

  function isOpen(topic) {
    return opened.includes(topic);
  }

  function closeAll(but) {
    for (const source of sources) if (source !== but) source.close();
    sources = sources.filter((source) => source === but);
  }

  function shut() {
    clearTimeout(timer);
    closeAll(null);
    const lost = opened;
    opened = [];
    for (const topic of lost) tell(topic, "is-open", false);
  }

  function retry() {
    shut();
    const wait = Math.min(500 * 2 ** attempt, LONGEST_WAIT_MS);
    attempt += 1;
    timer = setTimeout(connect, wait * (0.75 + Math.random() / 2));
  }

  function connect() {
    clearTimeout(timer);
    heardAt = Date.now();
    const followed = topics;
    const source = new EventSource(`${address}?${followed.map((topic) => `topic=${encodeURIComponent(topic)}`).join("&")}`);
    // What is open goes on until the new one is: its tabs notice nothing.
    closeAll(sources.find((before) => before.readyState === EventSource.OPEN));
    sources.push(source);
    let topic = followed[0];
    const names = new Set();
    const listen = (name) => {
      if (names.has(name)) return;
      names.add(name);
      source.addEventListener(name, ({ data }) => tell(topic, name, data));
    };
    source.onopen = (event) => {
      if (event instanceof MessageEvent) return; // a part of a page with this name
      attempt = 0;
      heardAt = Date.now();
      closeAll(source);
      opened = followed;
      for (const each of followed) tell(each, "is-open", true);
    };
    source.onerror = () => sources.includes(source) && retry();
    source.addEventListener("topic", ({ data }) => (topic = followed[Number(data)]));
    source.addEventListener("parts", ({ data }) => data.split(" ").filter(Boolean).forEach(listen));
    source.addEventListener("tick", () => {
      if (source === sources.at(-1)) heardAt = Date.now();
    });
    for (const name of ["refused", "tick", "points", "heat"]) listen(name);
  }

  return {
    isOpen,
    topics: () => topics,
    /** Follow these from now on, all from their beginning; none: close. */
    follow(wanted) {
      topics = wanted;
      if (topics.length) connect();
      else shut();
    },
    /** To be called every second. */
    watch() {
      if (!sources.length || Date.now() - heardAt <= SILENT_AFTER_MS) return;
      // What is open goes on while another one is asked for again.
      if (sources.length > 1) connect();
      else retry();
    },
  };
}
